//go:build linux

package lab

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed report.html
var reportHTML string

var reportTemplate = template.Must(template.New("report").Parse(reportHTML))

// Measures of the drawings, in units of the SVG.
const (
	rowHeight = 27
	headRoom  = 44
	footRoom  = 40
)

var laneX = [...]int{96, 252, 408, 564}

const drawingWidth = 630

// drawing is one figure, computed so far that the template only places it.
type drawing struct {
	Run           *Result
	Width, Height int
	Lanes         []drawnLane
	Rows          []drawnRow
	Pause         *drawnPause // nil when nobody was paused
	Verdict       string
	Harmed        bool
}

type drawnLane struct {
	X, Bottom int
	Name      string
}

type drawnRow struct {
	Y, TextY, TimeY int
	Time            string
	Kind            Kind
	Text            string
	Arrow, Refused  bool
	X1, X2, TextX   int
	CrossX          int // where a refused arrow ends
}

type drawnPause struct {
	X, Y, Height int
	Text         string
}

type section struct {
	Scenario Scenario
	Story    string
	Drawings []drawing
}

// HTML writes r as one page that needs no other file. replay is the command
// that runs the same again; it must hold no password.
func (r *Report) HTML(out io.Writer, replay string, now time.Time) error {
	var sections []section
	for _, s := range Scenarios {
		sec := section{Scenario: s, Story: s.Story()}
		for _, run := range r.Runs {
			if run.Scenario == s {
				sec.Drawings = append(sec.Drawings, draw(run))
			}
		}
		level(sec.Drawings)
		sections = append(sections, sec)
	}
	headColours := map[Kind]template.CSS{
		MarkStep: "var(--soft)", MarkSeal: "var(--soft)", MarkWrite: "var(--ink)", MarkPhantom: "var(--bad)",
	}
	return reportTemplate.Execute(out, map[string]any{
		"Report": r, "Sections": sections, "Replay": replay,
		"Colours": headColours, "When": now.UTC().Format("2006-01-02 15:04 MST"), "Took": r.Took.Round(100 * time.Millisecond).String(), "TTL": r.TTL.String(),
	})
}

// SumY is where the line below the lanes stands.
func (d drawing) SumY() int { return d.Height - footRoom/3 }

func draw(run *Result) drawing {
	d := drawing{Run: run, Width: drawingWidth, Harmed: run.Final != run.Acked}
	d.Verdict = fmt.Sprintf("balance %d, as acknowledged", run.Final)
	if d.Harmed {
		d.Verdict = fmt.Sprintf("balance %d, but %d was acknowledged", run.Final, run.Acked)
	}
	if len(run.Trace) == 0 {
		d.Verdict = "not played"
	}
	var pausedAt time.Duration
	for i, m := range run.Trace {
		y := headRoom + (i+1)*rowHeight
		switch m.Kind {
		case MarkPause:
			pausedAt = m.At
			d.Pause = &drawnPause{X: laneX[LaneWorker1] - 7, Y: y}
		case MarkResume:
			if d.Pause != nil {
				d.Pause.Height = y - d.Pause.Y
				d.Pause.Text = fmt.Sprintf("paused for %d ms", (m.At - pausedAt).Milliseconds())
			}
		}
		d.Rows = append(d.Rows, drawRow(m, y))
	}
	d.Height = headRoom + (len(run.Trace)+1)*rowHeight + footRoom
	d.lanes()
	return d
}

func (d *drawing) lanes() {
	d.Lanes = nil
	for lane, x := range laneX {
		d.Lanes = append(d.Lanes, drawnLane{X: x, Bottom: d.Height - footRoom, Name: laneNames[lane]})
	}
}

// level gives the drawings of a row one height.
func level(drawings []drawing) {
	height := 0
	for _, d := range drawings {
		height = max(height, d.Height)
	}
	for i := range drawings {
		drawings[i].Height = height
		drawings[i].lanes()
	}
}

func drawRow(m Mark, y int) drawnRow {
	row := drawnRow{Y: y, TextY: y - 5, TimeY: y + 4, Time: fmt.Sprintf("%d ms", m.At.Milliseconds()), Kind: m.Kind, Text: m.label(44)}
	if m.From == m.To {
		row.X1, row.TextX, row.TextY = laneX[m.From], laneX[m.From]+13, y+4
		return row
	}
	row.Arrow, row.Refused = true, m.refused()
	row.X1, row.X2 = laneX[m.From], laneX[m.To]
	// The head keeps a little distance from the lane it points to.
	if row.X1 < row.X2 {
		row.X2 -= 3
	} else {
		row.X2 += 3
	}
	if row.X2-row.X1 < laneX[1]-laneX[0] && row.X1-row.X2 < laneX[1]-laneX[0] {
		row.Text = m.label(19)
	}
	row.TextX = (laneX[m.From] + laneX[m.To]) / 2
	row.CrossX = row.X2 - 7
	return row
}
