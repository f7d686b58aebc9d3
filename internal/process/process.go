// Package process pauses, resumes and looks at operating system processes.
//
// A pause is SIGSTOP, which the kernel carries out some time after kill(2) has
// returned, thread by thread. [Pause] and [PauseTree] therefore return only when
// every thread is seen stopped, so that what a test does next really happens
// while the process stands still. [Resume] and [ResumeTree] wait the same way.
// The tree functions include all descendants; servers such as PostgreSQL do
// their work in children.
//
// Pause the other process from outside. A Go program that sends SIGSTOP to
// itself runs on for a while in its other threads.
//
// What a stopped process has not read yet stays in its socket buffers and is
// read after the resumption; new connections to a stopped server still succeed.
//
// Every wait ends after [Patience]. Errors name the process id and the state in
// which the process was seen last. The package reads /proc and works on Linux;
// on other systems its functions fail with an error that says so.
package process

import "time"

// Patience is how long the functions of this package wait for a process to
// reach the wanted state.
const Patience = 5 * time.Second
