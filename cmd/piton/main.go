// Command piton runs programs under fenced distributed locks, shows and breaks
// such locks, and proves what fencing is for.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/pitonlock/piton/cmd/piton/internal/backend"
)

// cli is the grammar. Every flag has an environment variable.
type cli struct {
	Run        runCmd        `cmd:"" help:"Run a command while holding a lock."`
	Locks      locksCmd      `cmd:"" help:"List the locks that are held."`
	Show       showCmd       `cmd:"" help:"Show who holds a lock."`
	Break      breakCmd      `cmd:"" help:"Take a lock away from its holder."`
	Admit      admitCmd      `cmd:"" help:"Print the SQL by which a script shows its fence to the storage."`
	Check      checkCmd      `cmd:"" help:"Check on your own server every law that the locks rely on."`
	Prove      proveCmd      `cmd:"" help:"Show on your own servers what a late write does, and that it is refused."`
	Completion completionCmd `cmd:"" help:"Print a completion script for a shell."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

const description = `Fenced distributed locks: the storage refuses what a holder writes after it lost its lock.

  piton run nightly-report -- ./report.sh          one at a time on this machine
  piton run --coordinator redis://cache:6379 deploy -- make deploy
  piton locks                                      what is held, by whom
`

func main() {
	if watching() || proving() {
		return
	}
	hideURLs()
	for _, kv := range os.Environ() {
		// An empty variable is as good as none: CI systems set what they do not know.
		if name, value, _ := strings.Cut(kv, "="); value == "" && strings.HasPrefix(name, "PITON_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(execute(os.Args[1:]))
}

// execute parses args, runs the command and returns the exit code.
func execute(args []string) int {
	args, command := splitCommand(usualForms(args))
	for _, arg := range args { // the parser would replace what it cannot read
		if !utf8.ValidString(arg) {
			return fail(&exitError{exitUsage, fmt.Sprintf("the argument %q is not valid UTF-8; lock names and flags are UTF-8 text (the command after -- may be any bytes)", arg)})
		}
	}
	var grammar cli
	parser := newParser(&grammar)
	parsed, err := parser.Parse(args)
	if err != nil {
		return fail(usageError(err, args, command))
	}
	grammar.Run.Command = command
	ctx := context.Background()
	if !strings.HasPrefix(parsed.Command(), "run ") { // run forwards signals instead
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	if err := parsed.Run(parser); err != nil {
		return fail(err)
	}
	return 0
}

func newParser(grammar *cli) *kong.Kong {
	parser, err := kong.New(grammar,
		kong.Name("piton"),
		kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{NoAppDescFormat: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.Help(printHelp),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
	)
	if err != nil {
		panic(err) // the grammar is constant
	}
	return parser
}

// printHelp is the parser's own help with the one usage line that it cannot
// know: the command is split off before it reads the rest.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	out := ctx.Stdout
	var page bytes.Buffer
	ctx.Stdout = &page
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	text := strings.Replace(page.String(), "Usage: piton run <lock> [flags]", "Usage: piton run [flags] <lock> -- <command> [<arg> ...]", 1)
	text = strings.Replace(text, "  run <lock> [flags]\n", "  run [flags] <lock> -- <command> [<arg> ...]\n", 1)
	_, err := io.WriteString(out, text)
	return err
}

// usualForms understands `piton help run` and `piton --version`.
func usualForms(args []string) []string {
	switch {
	case len(args) > 0 && args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case len(args) == 1 && args[0] == "--version":
		return []string{"version"}
	}
	return args
}

// splitCommand cuts the command off `piton run ... -- COMMAND`, so that its
// words are never taken for flags of piton. command is nil without --. In
// `piton run ... -- -NAME -- COMMAND`, and after the -- of other subcommands, is
// the name of a lock that looks like a flag.
func splitCommand(args []string) (own, command []string) {
	i := slices.Index(args, "--")
	if i < 0 || args[0] != "run" {
		return args, nil
	}
	own, command = args[:i], append([]string{}, args[i+1:]...)
	if len(command) > 1 && strings.HasPrefix(command[0], "-") && command[1] == "--" {
		return args[:i+2], command[2:]
	}
	return own, command
}

// usageError turns the parser's complaint into one line that also says what to write.
func usageError(err error, args, command []string) error {
	text := err.Error()
	name := "piton"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name += " " + args[0]
	}
	switch {
	case strings.HasPrefix(text, "unexpected argument") && name == "piton run":
		text += "; write the command after --: piton run LOCK -- COMMAND [ARG...]"
	case strings.HasPrefix(text, "unexpected argument") && len(args) > 0 && strings.HasPrefix(text, "unexpected argument "+args[0]):
		name = "piton"
		text = strings.Replace(text, "unexpected argument", "there is no subcommand", 1)
	case strings.HasPrefix(text, "unexpected argument") && slices.Contains(args, "--"):
		text = name + " takes no command after --; only piton run does"
	case strings.HasPrefix(text, "unexpected argument"):
	case strings.HasPrefix(text, "unknown flag") && slices.ContainsFunc(args, func(a string) bool { return len(a) > 2 && a[0] == '-' && a[1] != '-' }):
		text, _, _ = strings.Cut(text, ", did you mean")
		text += "; before a lock name that begins with - write --"
	case strings.Contains(text, `"<dialect>"`) || strings.HasPrefix(text, "<dialect> must be"):
		text = "write what the database speaks: piton admit postgres, mysql or sqlite"
	case strings.Contains(text, `"<lock>"`) && name == "piton run" && command != nil:
		text = "the name of the lock is missing; write piton run LOCK -- COMMAND [ARG...]"
	case strings.Contains(text, `"<lock>"`) && name == "piton run":
		text = "the name of the lock and the command are missing; write piton run LOCK -- COMMAND [ARG...]"
	case strings.Contains(text, `"<lock>"`):
		text = "the name of the lock is missing; write " + name + " LOCK"
	case strings.HasPrefix(text, "missing flags: --token"):
		text = "--token N is missing: the token of the lease to break, as piton show prints it"
	case strings.Contains(text, `"<shell>"`):
		text = "the shell is missing; write piton completion bash, zsh or fish"
	case len(args) == 0:
		text = "a subcommand is missing; write piton run LOCK -- COMMAND, piton locks, piton show LOCK"
		name = "piton"
	}
	text = strings.Replace(text, "expected a valid 64 bit int but got", "write a whole number, not", 1)
	text = negativeValue.ReplaceAllString(text, "$1 is negative")
	text = missingValue.ReplaceAllString(text, "its value is missing")
	return &exitError{exitUsage, fmt.Sprintf("%s (see %s --help)", text, name)}
}

// missingValue is how the parser says that a flag is the last word.
var missingValue = regexp.MustCompile(`(expected \w+ value but got "(EOL|-.*)" \((<EOL>|\w+ flag)\).*|missing value, expecting .*)`)

// negativeValue is how it says that a value looks like a flag.
var negativeValue = regexp.MustCompile(`expected \w+ value but got "(-[0-9.][^"]*)" \(\w+ flag\).*`)

// decodeDuration reads a duration and says how to write one.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration; write a number with a unit, as 30s, 1m30s or 500ms", text)
	}
	target.SetInt(int64(d))
	return nil
}

// connection is the flag that all subcommands with a coordinator share.
type connection struct {
	Coordinator string `env:"PITON_COORDINATOR" placeholder:"URL" help:"Where locks are kept: sqlite:///path, redis://, rediss://, redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST, etcd://HOST,HOST, postgres://, mysql://, memory:. A URL with a password is better given by the variable. Default: a file of this user, for this machine."`
}

func (c connection) open(ctx context.Context) (backend.Backend, error) {
	b, err := backend.OpenCoordinator(ctx, c.Coordinator)
	if err != nil {
		return b, openError(err)
	}
	return b, nil
}

// openExisting is open for those who only look: a mistyped path is no coordinator
// without locks.
func (c connection) openExisting(ctx context.Context) (backend.Backend, error) {
	if err := backend.Missing("coordinator", c.Coordinator); err != nil {
		return backend.Backend{}, openError(err)
	}
	return c.open(ctx)
}

// openError gives an error of package backend its exit code.
func openError(err error) error {
	var mistake *backend.URLError
	if errors.As(err, &mistake) {
		return &exitError{exitUsage, err.Error()}
	}
	return &exitError{exitUnavailable, err.Error()}
}

type versionCmd struct{}

func (versionCmd) Run() error {
	version := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	fmt.Printf("piton %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
