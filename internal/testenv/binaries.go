package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// EnvBinaries names another directory to build them in than bin/test: for those
// who build them otherwise, and would not have them mixed up.
const EnvBinaries = "HOLDFAST_TEST_BINARIES"

// built is where this test process's binaries are, once for all its tests.
var built = sync.OnceValues(build)

// Binaries builds bin/holdfast and bin/holdfast-guest as make build does, and
// returns their directory.
func Binaries(t testing.TB) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func build() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	// One place for all test binaries: the go command leaves alone what is current.
	dir := os.Getenv(EnvBinaries)
	if dir == "" {
		dir = filepath.Join(root, "bin", "test")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("build the binaries: %w", err)
	}
	for _, name := range []string{"holdfast", "holdfast-guest"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), "./cmd/"+name)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
}

// Root is the module's directory.
func Root() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// RequireRoot skips, loudly and by name, what a machine without root cannot do.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: containers, mounts and network namespaces")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("needs runc: run make test, which installs it")
	}
}
