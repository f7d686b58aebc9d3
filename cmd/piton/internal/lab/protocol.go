//go:build linux

package lab

import "time"

// orders is the first line that a worker reads: everything that it needs. It
// goes through the pipe, not through arguments or environment, because the URLs
// may hold passwords.
type orders struct {
	Coordinator string
	Storage     string
	Prefix      string // of the laboratory's tables
	Protection  Protection
	Lock        string // its name; the account has the same
	Worker      int
	Amount      int64
	TTL         time.Duration
}

// The steps of a worker, one per line; each is answered by one [event].
const (
	stepAcquire = "acquire"
	stepRead    = "read"
	stepCheck   = "check"
	stepWrite   = "write"
	stepRelease = "release"
)

// event is what a worker reports, one per line.
type event struct {
	Step    string // the step that it answers, or one of the reports below
	Token   int64  `json:",omitempty"`
	Balance int64  `json:",omitempty"` // read, or written
	Held    bool   `json:",omitempty"` // the answer to check
	Refused string `json:",omitempty"` // why the storage did not accept the write
	Error   string `json:",omitempty"` // the step could not be done
}

// The reports that answer no step.
const (
	reportReady = "ready" // connected, waiting for the first step
	reportLost  = "lost"  // Piton cancelled the work's context; Refused says why
	reportSeal  = "seal"  // Piton sealed the storage, or Refused says why not
)
