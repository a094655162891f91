package acceptance

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// tourStep is one command of README.md's tour with the output it shows.
type tourStep struct{ command, output string }

// tour reads the console blocks that README.md marks as its tour.
func tour(t *testing.T) []tourStep {
	t.Helper()
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var steps []tourStep
	for _, block := range regexp.MustCompile("(?s)<!-- tour -->\n```console\n(.*?)```").FindAllStringSubmatch(string(raw), -1) {
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				steps = append(steps, tourStep{command: strings.TrimSpace(command)})
			} else {
				steps[len(steps)-1].output += line
			}
		}
	}
	if len(steps) < 10 {
		t.Fatalf("the tour has %d steps", len(steps))
	}
	return steps
}

var (
	tourID  = regexp.MustCompile(`\b[a-z]{2}-[0-9a-z]{26}\b`)
	varying = []*regexp.Regexp{ // what a clock decides, by its width
		regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), regexp.MustCompile(`\b\ds ago`), regexp.MustCompile(`in (60|59)m`),
		regexp.MustCompile(`\b\ds\n`),
	}
)

// masked replaces what differs from run to run with the same everywhere.
func masked(text string) string {
	for i, v := range varying {
		text = v.ReplaceAllString(text, "<varies "+string(rune('a'+i))+">")
	}
	return text
}

// The README's tour does what it shows, character for character; only ids and
// times are its own.
func TestTheREADMEsTourIsTrue(t *testing.T) {
	serve(t).takeTour()
}

// contract: B1: as three processes it is the same.
func TestB1_TheREADMEsTourIsTrueOfThreeProcesses(t *testing.T) {
	serveApart(t).takeTour()
}

// takeTour walks the tour and keeps what it made for the clean-up.
func (s *system) takeTour() {
	s.t.Helper()
	walkTour(s.t, s.URL, s.DataDir)
	page, err := s.client.ListSandboxes(s.t.Context(), listAll())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, sb := range page.Sandboxes {
		s.keep(sb.ID)
	}
}

// walkTour runs the tour against a server whose data directory has the key.
func walkTour(t *testing.T, server, dataDir string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(testenv.Binaries(t), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{} // the README's to this run's
	status := "0"
	for _, step := range tour(t) {
		command := tourID.ReplaceAllStringFunc(step.command, func(id string) string {
			if own, ok := ids[id]; ok {
				return own
			}
			return id
		})
		// Each step has the shell's state of the one before: its exit code and KEY.
		script := "KEY=$(cat " + dataDir + "/admin.key)\n(exit " + status + ")\n" + command
		cmd := exec.Command("bash", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOLDFAST_SERVER="+server, "HOLDFAST_DATA_DIR="+dataDir)
		out, err := cmd.CombinedOutput()
		status = "0"
		if err != nil {
			status = regexp.MustCompile(`\d+`).FindString(err.Error())
		}
		wantIDs, gotIDs := tourID.FindAllString(step.output, -1), tourID.FindAllString(string(out), -1)
		for i, id := range wantIDs {
			if _, known := ids[id]; !known && i < len(gotIDs) {
				ids[id] = gotIDs[i]
			}
		}
		want := masked(tourID.ReplaceAllStringFunc(step.output, func(id string) string { return ids[id] }))
		if got := masked(string(out)); got != want {
			t.Errorf("$ %s\ngot:\n%s\nREADME:\n%s", step.command, got, want)
		}
	}
}
