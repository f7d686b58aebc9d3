// Package sqlfile reads the statements of an embedded .sql file.
package sqlfile

import "strings"

// Named splits a file into its statements, each headed by a line "-- name: X".
// Other comment lines are for readers and are left out.
func Named(file string) map[string]string {
	byName := map[string]string{}
	name := ""
	for line := range strings.Lines(file) {
		if after, ok := strings.CutPrefix(line, "-- name: "); ok {
			name = strings.TrimSpace(after)
		} else if !strings.HasPrefix(line, "--") {
			byName[name] += line
		}
	}
	for name, statement := range byName {
		byName[name] = strings.TrimSpace(statement)
	}
	delete(byName, "") // what stands above the first name
	return byName
}
