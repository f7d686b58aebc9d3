//go:build linux

package lab

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Width is how many columns the pictures and tables need at most.
const Width = 100

// laneColumns are where the lanes stand; the time is left of the first.
var laneColumns = [...]int{12, 38, 64, 90}

var laneNames = [...]string{"worker 1", "coordinator", "worker 2", "storage"}

// Printer writes the report for a terminal.
type Printer struct {
	Out    io.Writer
	Colour bool
}

// The colours, by what they mean.
const (
	colourBad  = "31"
	colourGood = "32"
	colourWait = "33"
	colourDim  = "2"
	colourBold = "1"
)

func (p *Printer) paint(colour, s string) string {
	if !p.Colour || colour == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// Picture draws the first round of run as a sequence diagram, one line a step.
func (p *Printer) Picture(run *Result) {
	fmt.Fprintf(p.Out, "\n%s\n", p.paint(colourBold, fmt.Sprintf("%s / %s", run.Scenario, run.Protection)))
	fmt.Fprintf(p.Out, "%s\nProtection: %s.\n\n", run.Scenario.Story(), run.Protection.Story())
	if len(run.Trace) == 0 {
		fmt.Fprintln(p.Out, "(not played)")
		return
	}
	head := newCanvas()
	for lane, name := range laneNames {
		head.put(laneColumns[lane]-utf8.RuneCountInString(name)/2, name)
	}
	fmt.Fprintln(p.Out, head)
	paused := false
	for _, m := range run.Trace {
		switch m.Kind {
		case MarkPause:
			paused = true
		case MarkResume:
			paused = false
		}
		fmt.Fprintln(p.Out, p.paint(colourOf(m.Kind), drawLine(m, paused)))
	}
	p.outcome(run)
}

func (p *Printer) outcome(run *Result) {
	if run.Final == run.Acked {
		fmt.Fprintf(p.Out, "%9s %s\n", "", p.paint(colourGood, fmt.Sprintf("The balance is %d, as was acknowledged.", run.Final)))
		return
	}
	fmt.Fprintf(p.Out, "%9s %s\n", "", p.paint(colourBad, fmt.Sprintf("The balance is %d, but %d was acknowledged: an update is lost.", run.Final, run.Acked)))
}

func colourOf(k Kind) string {
	switch k {
	case MarkPhantom, MarkBad:
		return colourBad
	case MarkRefused:
		return colourGood
	case MarkPause, MarkResume, MarkLost, MarkDenied:
		return colourWait
	}
	return ""
}

// drawLine draws one mark over the lanes.
func drawLine(m Mark, paused bool) string {
	c := newCanvas()
	c.put(0, fmt.Sprintf("%6d ms", m.At.Milliseconds()))
	for lane, column := range laneColumns {
		line := "│"
		if paused && Lane(lane) == LaneWorker1 {
			line = "░"
		}
		c.put(column, line)
	}
	if m.From == m.To {
		c.put(laneColumns[m.From]+2, sign(m.Kind)+m.label(laneColumns[1]-laneColumns[0]-5))
		return c.String()
	}
	left, right := laneColumns[min(m.From, m.To)]+1, laneColumns[max(m.From, m.To)]-1
	c.put(left, strings.Repeat("─", right-left+1))
	switch {
	case m.refused():
		c.put(right, "✗")
	case m.From < m.To:
		c.put(right, "▶")
	default:
		c.put(left, "◀")
	}
	text := " " + m.label(right-left-3) + " "
	c.put(left+(right-left+1-utf8.RuneCountInString(text))/2, text)
	return c.String()
}

func sign(k Kind) string {
	switch k {
	case MarkPause:
		return "■ "
	case MarkResume:
		return "▶ "
	case MarkLost, MarkBad:
		return "! "
	}
	return ""
}

// label is the text of m with as much of its token and fate as fits into room.
func (m Mark) label(room int) string {
	fate := map[Kind]string{MarkPhantom: "PHANTOM", MarkRefused: "REFUSED", MarkDenied: "REFUSED"}[m.Kind]
	token := ""
	if m.Token > 0 {
		token = fmt.Sprintf("token %d", m.Token)
	}
	for _, parts := range [][]string{{m.Text, token, fate}, {m.Text, fate}} {
		text := strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
		if utf8.RuneCountInString(text) <= room {
			return text
		}
	}
	return m.Text
}

// canvas is one line of fixed width.
type canvas []rune

func newCanvas() canvas { return []rune(strings.Repeat(" ", Width)) }

// put writes s at column; what does not fit is cut off.
func (c canvas) put(column int, s string) {
	for _, r := range s {
		if column >= 0 && column < len(c) {
			c[column] = r
		}
		column++
	}
}

func (c canvas) String() string { return strings.TrimRight(string(c), " ") }

// Table prints the counts of every run.
func (p *Printer) Table(r *Report) {
	const format = "%-10s  %-10s  %6s  %14s  %12s  %14s"
	fmt.Fprintf(p.Out, "\n%s\n", p.paint(colourBold, fmt.Sprintf(format, "scenario", "protection", "rounds", "phantom writes", "lost updates", "refused writes")))
	for _, run := range r.Runs {
		line := fmt.Sprintf(format, run.Scenario, run.Protection, fmt.Sprint(run.Rounds), fmt.Sprint(run.PhantomWrites), fmt.Sprint(run.LostUpdates), fmt.Sprint(run.RefusedWrites))
		colour := ""
		switch {
		case run.PhantomWrites+run.LostUpdates > 0:
			colour = colourBad
		case run.RefusedWrites > 0:
			colour = colourGood
		}
		if run.Unserved > 0 {
			line += "  (of the new holder)"
		}
		fmt.Fprintln(p.Out, p.paint(colour, line))
	}
}

// Verdict prints the answer, in one line.
func (p *Printer) Verdict(r *Report) {
	colour := map[Verdict]string{Protected: colourGood, Violated: colourBad, Unknown: colourWait}[r.Verdict]
	fmt.Fprintf(p.Out, "\n%s\n", p.paint(colour, fmt.Sprintf("verdict: %s - %s", r.Verdict, r.Reason)))
}
