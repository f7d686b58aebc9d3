package main

import (
	_ "embed"
	"os"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `Examples:

    piton completion bash > ~/.local/share/bash-completion/completions/piton
    piton completion zsh > "${fpath[1]}/_piton"
    piton completion fish > ~/.config/fish/completions/piton.fish`
}

//go:embed completion.tmpl
var completionText string

// The template gets the grammar as it is, so that a new flag completes by itself.
type completionCommand struct {
	Name, Help string
	Flags      []completionFlag
	Args       []string // choices of the first argument
}

type completionFlag struct {
	Name, Help string
	Takes      bool // a value follows
}

func (c *completionCmd) Run(parser *kong.Kong) error {
	shells := template.New("").Funcs(template.FuncMap{"quote": shellQuote, "names": flagNames})
	t, err := shells.Parse(completionText)
	if err != nil {
		return err
	}
	return t.ExecuteTemplate(os.Stdout, c.Shell, completionCommands(parser))
}

func completionCommands(parser *kong.Kong) []completionCommand {
	var commands []completionCommand
	for _, node := range parser.Model.Children {
		if node.Hidden {
			continue
		}
		c := completionCommand{Name: node.Name, Help: firstSentence(node.Help)}
		for _, flag := range node.Flags {
			if !flag.Hidden {
				c.Flags = append(c.Flags, completionFlag{flag.Name, firstSentence(flag.Help), !flag.IsBool()})
			}
		}
		for _, arg := range node.Positional {
			if arg.Enum != "" {
				c.Args = strings.Split(arg.Enum, ",")
			}
		}
		c.Flags = append(c.Flags, completionFlag{"help", "Show help", false})
		commands = append(commands, c)
	}
	return commands
}

func firstSentence(s string) string {
	if i := strings.Index(s, ". "); i >= 0 {
		s = s[:i]
	}
	return strings.TrimSuffix(s, ".")
}

func flagNames(flags []completionFlag) string {
	names := make([]string, len(flags))
	for i, f := range flags {
		names[i] = "--" + f.Name
	}
	return strings.Join(names, " ")
}

// shellQuote quotes for all three shells; none of the texts has a quote or a
// backslash of its own, which a test makes sure of.
func shellQuote(s string) string { return "'" + s + "'" }
