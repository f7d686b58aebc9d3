//go:build linux

package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	osprocess "github.com/pitonlock/piton/internal/process"
)

// nursery starts processes from one OS thread that lives as long as it does:
// the kernel's parent-death signal follows the thread that forked.
type nursery struct {
	births chan func()
}

func newNursery() *nursery {
	n := &nursery{births: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for birth := range n.births {
			birth()
		}
	}()
	return n
}

func (n *nursery) close() { close(n.births) }

func (n *nursery) start(cmd *exec.Cmd) error {
	started := make(chan error)
	n.births <- func() { started <- cmd.Start() }
	return <-started
}

// process is a worker seen from the laboratory.
type process struct {
	worker  int
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  bytes.Buffer // read it after ended
	answers chan event   // closed when the worker's output ends
	ended   chan struct{}
	remark  func(event) // takes what answers no step
}

// startWorker runs argv as a worker and waits until it is connected. The worker dies
// with the laboratory, also when it is stopped.
func (n *nursery) startWorker(ctx context.Context, argv, env []string, o orders, remark func(event)) (*process, error) {
	p := &process{worker: o.Worker, answers: make(chan event, 4), ended: make(chan struct{}), remark: remark}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.stderr
	// A group of its own: Ctrl-C is the laboratory's, which has tables to drop.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting worker %d: %w", o.Worker, err)
	}
	go p.listen(stdout)
	first, err := json.Marshal(o)
	if err == nil {
		_, err = p.stdin.Write(append(first, '\n'))
	}
	if err == nil {
		_, err = p.await(ctx, reportReady)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

func (p *process) listen(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			break
		}
		if e.Step == reportLost || e.Step == reportSeal {
			p.remark(e)
			continue
		}
		p.answers <- e
	}
	close(p.answers)
	_ = p.cmd.Wait()
	close(p.ended)
}

// tell writes a step into the worker's pipe; a stopped worker finds it there
// when it goes on.
func (p *process) tell(step string) error {
	_, err := io.WriteString(p.stdin, step+"\n")
	return err
}

func (p *process) await(ctx context.Context, step string) (event, error) {
	select {
	case e, ok := <-p.answers:
		switch {
		case !ok:
			<-p.ended
			return e, fmt.Errorf("worker %d ended while it should %s: %v %s", p.worker, step, p.cmd.ProcessState, lastLine(p.stderr.String()))
		case e.Step != step:
			return e, fmt.Errorf("worker %d answered %q to %q", p.worker, e.Step, step)
		case e.Error != "":
			return e, fmt.Errorf("worker %d, %s: %s", p.worker, step, e.Error)
		}
		return e, nil
	case <-ctx.Done():
		return event{}, fmt.Errorf("worker %d did not %s in time: %w", p.worker, step, context.Cause(ctx))
	}
}

func (p *process) do(ctx context.Context, step string) (event, error) {
	if err := p.tell(step); err != nil {
		return event{}, fmt.Errorf("worker %d, %s: %w", p.worker, step, err)
	}
	return p.await(ctx, step)
}

// stop sends SIGSTOP and returns when every thread stands still.
func (p *process) stop() error { return osprocess.Pause(p.cmd.Process.Pid) }

func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// end lets the worker finish: its input ends, and so does it.
func (p *process) end(ctx context.Context) error {
	_ = p.stdin.Close()
	select {
	case <-p.ended:
		if !p.cmd.ProcessState.Success() {
			return fmt.Errorf("worker %d ended badly: %v %s", p.worker, p.cmd.ProcessState, lastLine(p.stderr.String()))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("worker %d did not end: %w", p.worker, context.Cause(ctx))
	}
}

// kill ends the worker whatever it does, stopped or not, and reaps it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // has ended already: fine
	go func() {
		for range p.answers {
		}
	}()
	<-p.ended
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
