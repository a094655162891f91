//go:build mirror

package image

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestDebian builds a real suite: with -tags mirror, since it needs one, and a
// minute of it.
func TestDebian(t *testing.T) {
	s := newTestStore(t, t.TempDir())
	begin := time.Now()
	image, err := s.Ensure(t.Context(), "debian", func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d MiB in %v", image.Ref, image.Size>>20, time.Since(begin))
	for _, tool := range []string{"bash --version", "git --version", "python3 --version"} {
		cmd := exec.Command("chroot", append([]string{image.RootFS}, strings.Fields(tool)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", tool, err, out)
		}
	}
}
