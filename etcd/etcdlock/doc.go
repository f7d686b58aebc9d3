// Package etcdlock is the coordinator of piton on etcd 3.4 or newer.
package etcdlock
