package main

type proveCmd struct {
	Coordinator string `env:"PITON_COORDINATOR" placeholder:"URL" help:"Where the locks of the proof are kept: the URLs of piton run, but for memory:. Default: an embedded one in a temporary folder."`
	Storage     string `env:"PITON_STORAGE" placeholder:"URL" help:"Where the account is kept: sqlite:///path, postgres://, mysql://. Default: SQLite in a temporary folder."`
	Rounds      int    `env:"PITON_ROUNDS" default:"3" placeholder:"N" help:"How often each scenario is played under each protection. Default: 3."`
	JSON        bool   `env:"PITON_JSON" help:"Print one JSON object instead of pictures and table."`
	Report      string `env:"PITON_REPORT" placeholder:"FILE.html" help:"Also write a page with all pictures; one file that needs no other."`
	Verbose     bool   `env:"PITON_VERBOSE" help:"Show the pictures of the protection compare as well."`
}

func (proveCmd) Help() string {
	return `Two processes share a lock and an account. One of them is stopped with SIGSTOP past its
lease, and writes when it wakes up. The same is played without protection, with the
usual comparison of tokens, and with Piton; the storage's journal says what happened.

Scenarios:
    phantom     the holder is paused between its check and its write
    read-hole   the old holder writes between the new one's read and its first write
    twin        the coordinator lost its counter: two holders, one number
Protections:
    none        SET NX PX, or what the coordinator has for it, and a check in memory
    compare     and the storage accepts last_fencing_token < token
    sealed      Piton

Examples:

    piton prove
    piton prove --coordinator redis://localhost:6379 --storage postgres://app@localhost/test
    piton prove --coordinator etcd://localhost:2379
    piton prove --json | jq .verdict
    piton prove --report proof.html

The tables and keys of the proof have random names that start with piton_lab_ and are
removed at the end. Exit code: 0 when Piton held; 1 when it did not, or when that could
not be shown; 64 usage; 69 a server does not answer.`
}
