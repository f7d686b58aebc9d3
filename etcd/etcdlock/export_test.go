package etcdlock

// EndsLivingLeases is for tests.
var EndsLivingLeases = endsLivingLeases
