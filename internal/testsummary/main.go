// Command testsummary reads `go test -json` from standard input and prints what
// a person wants of it: a line per package, the whole output of what failed, and
// at the end what the rungs of the proof counted, every skipped test by name and
// the counts. It exits non-zero when anything failed, when nothing ran and, with
// -no-skips, when anything was skipped.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/prove"
)

type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
	// ImportPath and FailedBuild tell of what did not compile.
	ImportPath  string
	FailedBuild string
}

type name struct{ pkg, test string }

type summary struct {
	out             io.Writer
	output          map[name][]string
	build           map[string][]string
	passed, failed  int
	packagesFailed  int
	skipped, broken []string
	skips           map[name]string // with the reason
	elsewhere       map[name]bool   // shown on PostgreSQL
}

func main() {
	noSkips := flag.Bool("no-skips", false, "fail when a test was skipped")
	figures := flag.String("figures", "", "file of what the rungs of the proof counted")
	flag.Parse()
	s := &summary{out: os.Stdout, output: map[name][]string{}, build: map[string][]string{}, skips: map[name]string{}, elsewhere: map[name]bool{}}
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(2)
	}
	counted, err := prove.Read(*figures)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(2)
	}
	s.proof(counted)
	if !s.close(*noSkips) {
		os.Exit(1)
	}
}

func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(s.out, "%s", line) // not an event: the tool's own words
			} else {
				s.take(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the test events: %w", err)
		}
	}
}

// onPostgres begins the names of tests that are run once more, on PostgreSQL
// (testenv.OnPostgres).
const onPostgres = "TestOnPostgres/"

func (s *summary) take(e event) {
	key := name{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		s.build[e.ImportPath] = append(s.build[e.ImportPath], e.Output)
	case "output":
		s.output[key] = append(s.output[key], e.Output)
	case "pass", "fail", "skip":
		s.ended(e, key)
		delete(s.output, key)
	}
}

func (s *summary) ended(e event, key name) {
	if e.Test == "" {
		s.endedPackage(e, key)
		return
	}
	switch e.Action {
	case "pass":
		s.passed++
		if test, ok := strings.CutPrefix(e.Test, onPostgres); ok {
			s.elsewhere[name{e.Package, test}] = true
		}
	case "skip":
		s.skips[key] = strings.TrimSpace(strings.Join(s.output[key], " "))
	case "fail":
		s.failed++
		s.broken = append(s.broken, e.Package+" "+e.Test)
		fmt.Fprintf(s.out, "%s", strings.Join(s.output[key], ""))
	}
}

func (s *summary) endedPackage(e event, key name) {
	text := strings.Join(s.output[key], "")
	switch {
	case e.Action == "fail":
		s.packagesFailed++
		fmt.Fprintf(s.out, "%s%sFAIL %s (%.1fs)\n", strings.Join(s.build[e.FailedBuild], ""), text, e.Package, e.Elapsed)
	case e.Action == "pass":
		fmt.Fprintf(s.out, "ok   %s (%.1fs)\n", e.Package, e.Elapsed)
	}
}

// proof prints what the rungs counted. What they found wrong has failed as tests.
func (s *summary) proof(figures []prove.Figure) {
	if len(figures) > 0 {
		fmt.Fprintf(s.out, "\nOf the proof, whose whole is make prove:\n")
	}
	slices.SortStableFunc(figures, func(a, b prove.Figure) int { return cmp.Compare(a.Rung, b.Rung) })
	for _, f := range figures {
		fmt.Fprintf(s.out, "  rung %d: %d %s, %d violations\n", f.Rung, f.Value, f.Name, f.Violations)
	}
}

// close prints the end and reports whether all is well.
func (s *summary) close(noSkips bool) bool {
	for key, reason := range s.skips {
		test, _, _ := strings.Cut(key.test, "/")
		if !s.elsewhere[name{key.pkg, test}] { // what one dialect cannot show, the same test has shown on the other
			s.skipped = append(s.skipped, fmt.Sprintf("%s %s: %s", key.pkg, key.test, reason))
		}
	}
	slices.Sort(s.skipped)
	if len(s.skipped) > 0 {
		fmt.Fprintf(s.out, "\nSkipped, so not shown on this machine:\n  %s\n", strings.Join(s.skipped, "\n  "))
	}
	if len(s.broken) > 0 {
		fmt.Fprintf(s.out, "\nFailed:\n  %s\n", strings.Join(s.broken, "\n  "))
	}
	if s.packagesFailed > 0 && s.failed == 0 {
		s.failed = s.packagesFailed // a package that did not build or crashed
	}
	fmt.Fprintf(s.out, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, len(s.skipped))
	return s.failed == 0 && s.packagesFailed == 0 && s.passed > 0 && (!noSkips || len(s.skipped) == 0)
}
