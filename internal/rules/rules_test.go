package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pitonlock/piton/guardtest"
	"github.com/pitonlock/piton/locktest"
)

const (
	root   = "../.."
	module = "github.com/pitonlock/piton"
)

// source is one Go file of any module of the repository.
type source struct {
	path string // from the root, with slashes
	text []byte
	ast  *ast.File
}

func (s source) test() bool   { return strings.HasSuffix(s.path, "_test.go") }
func (s source) dir() string  { return filepath.ToSlash(filepath.Dir(s.path)) }
func (s source) lines() int   { return bytes.Count(s.text, []byte("\n")) }
func (s source) leaf() string { return leafOf(s.dir()) }

func (s source) imports() []string {
	var paths []string
	for _, i := range s.ast.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		paths = append(paths, path)
	}
	return paths
}

// leafOf names the module that a folder belongs to, "" for the root.
func leafOf(dir string) string {
	for ; dir != "." && dir != "/"; dir = filepath.ToSlash(filepath.Dir(dir)) {
		if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err == nil {
			return dir
		}
	}
	return ""
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all = append(all, source{filepath.ToSlash(rel), text, file})
		return err
	})
	if err != nil || len(all) < 50 {
		t.Fatalf("read %d files: %v", len(all), err)
	}
	return all
}

func TestTheRootRequiresNothing(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("require")) {
		t.Errorf("the root's go.mod has a require:\n%s", text)
	}
}

// Root <- leaves <- commands, examples and e2e. Leaves never import one another.
func TestImportsPointOneWay(t *testing.T) {
	tops := []string{"cmd/piton", "internal/e2e", "examples/accounts"}
	for _, s := range sources(t) {
		for _, path := range s.imports() {
			dir, ours := strings.CutPrefix(path, module)
			dir = strings.TrimPrefix(dir, "/")
			switch {
			case !ours && s.leaf() == "" && strings.Contains(strings.Split(path, "/")[0], "."):
				t.Errorf("%s, in the root module, imports %s", s.path, path)
			case !ours || leafOf(dir) == "" || leafOf(dir) == s.leaf():
			case slices.Contains(tops, leafOf(dir)):
				t.Errorf("%s imports %s, which nothing may import", s.path, path)
			case !slices.Contains(tops, s.leaf()):
				t.Errorf("%s imports %s, another leaf", s.path, path)
			}
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		most := 400
		if s.test() {
			most = 600
		}
		if s.lines() > most {
			t.Errorf("%s has %d lines; want at most %d", s.path, s.lines(), most)
		}
	}
}

// A sleep is a guess about time, except in a synctest bubble, where it is exact.
func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() && !slices.Contains(s.imports(), "testing/synctest") && calls(s.ast, "time", "Sleep") {
			t.Errorf("%s calls time.Sleep", s.path)
		}
	}
}

// NoSharedClock: what is never turned into a number cannot be compared with
// another machine's time.
func TestNobodyReadsTheWallClock(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || strings.HasPrefix(s.path, "cmd/") || strings.HasPrefix(s.path, "internal/") {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Unix") {
				t.Errorf("%s uses %s", s.path, sel.Sel.Name)
			}
			return true
		})
	}
}

func calls(file *ast.File, pkg, name string) bool {
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == pkg {
				found = true
			}
		}
		return !found
	})
	return found
}

// A coordinator's tests call locktest.Run; a guard's call guardtest.Run, in its
// own package or, where that needs drivers, in internal/e2e.
func TestEveryDriverRunsTheLaws(t *testing.T) {
	all := sources(t)
	runs := func(dir, suite string) bool {
		return slices.ContainsFunc(all, func(s source) bool {
			near := s.dir() == dir || s.leaf() == "internal/e2e" && slices.Contains(s.imports(), module+"/"+dir)
			return s.test() && near && calls(s.ast, suite, "Run")
		})
	}
	drivers := map[string]bool{}
	for _, s := range all {
		dir := s.dir()
		suite := ""
		switch {
		case dir == "internal/clock":
			continue
		case strings.HasSuffix(dir, "lock"):
			suite = "locktest"
		case strings.HasSuffix(dir, "guard"):
			suite = "guardtest"
		default:
			continue
		}
		if !drivers[dir] && !runs(dir, suite) {
			t.Errorf("no test of %s calls %s.Run", dir, suite)
		}
		drivers[dir] = true
	}
	if len(drivers) < 4 {
		t.Errorf("found only the drivers %v", drivers)
	}
}

func TestEveryLawIsInTheGuarantees(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, law := range lawTexts() {
		if !bytes.Contains(text, []byte(name)) {
			t.Errorf("docs/guarantees.md does not name the law %s: %s", name, law)
		}
	}
}

func lawTexts() map[string]string {
	laws := map[string]string{}
	for _, law := range locktest.Laws {
		laws[law.Name] = law.Text
	}
	for _, law := range guardtest.Laws {
		laws[law.Name] = law.Text
	}
	return laws
}

// What docs/guarantees.md names as a test exists.
func TestTheGuaranteesNameTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test() {
				tests[f.Name.Name] = true
			}
		}
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(string(text), -1) {
		if !tests[name] {
			t.Errorf("docs/guarantees.md names %s, which no test file has", name)
		}
	}
}

func TestTheRootExportsLittle(t *testing.T) {
	const most = 50
	var names []string
	for _, s := range sources(t) {
		if s.dir() != "." || s.test() {
			continue
		}
		names = append(names, exported(s.ast)...)
	}
	// The values of one type in one const block are one idea.
	names = slices.DeleteFunc(names, func(n string) bool {
		return strings.HasPrefix(n, "Event") && n != "Event" && n != "EventKind" || strings.HasPrefix(n, "Reason") && n != "Reason"
	})
	if len(names) >= most {
		slices.Sort(names)
		t.Errorf("the root exports %d names; want fewer than %d: %v", len(names), most, names)
	}
}

// exported lists the exported names that a file declares, without methods.
func exported(file *ast.File) []string {
	var names []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						names = append(names, id.Name)
					}
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(n string) bool { return !ast.IsExported(n) })
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || strings.Contains(s.path, "cmd/") || strings.Contains(s.path, "examples/") {
			continue
		}
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && !method(d) {
					t.Errorf("%s: %s has no doc comment", s.path, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					ts, ok := spec.(*ast.TypeSpec)
					if ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: type %s has no doc comment", s.path, ts.Name.Name)
					}
				}
			}
		}
	}
}

// method tells whether d is a method that needs no comment of its own: one of an
// unexported type, or one whose meaning the standard library fixes.
func method(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return false
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, ok := typ.(*ast.Ident)
	return !ok || !id.IsExported() || slices.Contains([]string{"Error", "Len", "Less", "Swap", "Push", "Pop"}, d.Name.Name)
}

// The Makefile is ten words at most, and says what each is for.
func TestTheMakefileIsSmall(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`(?m)^([a-z]+):`).FindAllStringSubmatch(string(text), -1)
	if len(words) == 0 || len(words) > 10 {
		t.Errorf("the Makefile has %d words; want 1 to 10", len(words))
	}
}
