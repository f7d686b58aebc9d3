package consullock

// Escape is for tests.
var Escape = escape
