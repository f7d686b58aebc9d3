package sqlguard

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/pitonlock/piton"
)

// AdmitScript returns [Guard.Admit] as SQL text, for programs that are not
// written in Go: they run it as the first statements of their transaction, with
// a client that ends at the first error (psql -v ON_ERROR_STOP=1, sqlite3 -bail;
// mysql and mariadb do so by themselves). It fails when f is not the mark: when
// that is newer, another holder's, or missing.
//
// Names are written in hexadecimal, so that no client's quoting or character set
// changes them. On PostgreSQL a transaction that idles for 30 s is ended.
func AdmitScript(d Dialect, f piton.Fence) (string, error) {
	named, ok := statements[d]
	if !ok {
		return "", fmt.Errorf("sqlguard: unknown dialect %v; want sqlguard.Postgres, sqlguard.MySQL or sqlguard.SQLite", d)
	}
	if err := validate(f); err != nil {
		return "", err
	}
	script := strings.NewReplacer(
		":lock", hex.EncodeToString([]byte(f.Lock)),
		":holder", hex.EncodeToString([]byte(f.Holder)),
		":token", strconv.FormatInt(int64(f.Token), 10),
	).Replace(named["script"])
	return script + "\n", nil
}
