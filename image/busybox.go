package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// busybox is the recipe of "base": one static binary, a link for each of its
// applets, and the few files that programs look for.
type busybox struct {
	path string // "": found
	hash func(path string) (string, error)
}

// baseVersion is raised when the recipe makes something else of the same binary.
const baseVersion = "base/1"

func (b busybox) find() (string, error) {
	places := []string{b.path}
	if b.path == "" {
		places = []string{"/bin/busybox", "/usr/bin/busybox"} // where Debian's package has it, before and after the merge
	}
	for _, place := range places {
		info, err := os.Stat(place)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("image base: %w", err)
		}
		if info.Mode().IsRegular() {
			return place, checkStatic(place)
		}
	}
	return "", holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed,
		"the image \"base\" is made of a static busybox, and there is none on the host: apt-get install busybox-static")
}

// checkStatic refuses a program that needs libraries, which the image lacks.
func checkStatic(place string) error {
	f, err := elf.Open(place)
	if err != nil {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed, "%s is no program", place).Because(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			err = holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonImageFailed,
				"%s needs shared libraries; the image \"base\" is made of a static one: apt-get install busybox-static", place)
		}
	}
	return errors.Join(err, f.Close())
}

func (b busybox) digest(context.Context) (string, error) {
	place, err := b.find()
	if err != nil {
		return "", err
	}
	binary, err := b.hash(place)
	if err != nil {
		return "", fmt.Errorf("image base: %w", err)
	}
	return digestOf(baseVersion, binary), nil
}

func digestOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// entry is one file or directory of the base.
type entry struct {
	path string
	mode fs.FileMode
	text string // of a file
}

func baseEntries() []entry {
	entries := []entry{
		{"etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"},
		{"etc/group", 0o644, "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"},
		{"etc/shadow", 0o600, "root:*:::::::\nnobody:*:::::::\n"},
		{"etc/shells", 0o644, "/bin/sh\n/bin/ash\n"},
		{"etc/profile", 0o644, "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"},
		{"etc/nsswitch.conf", 0o644, "hosts: files dns\n"},
		{"etc/os-release", 0o644, "NAME=\"Holdfast base\"\nID=holdfast-base\nPRETTY_NAME=\"Holdfast base (busybox)\"\n"},
	}
	for _, dir := range []string{"bin", "sbin", "usr", "usr/bin", "usr/sbin", "usr/local", "usr/local/bin", "usr/local/sbin", "usr/lib",
		"lib", "etc", "home", "mnt", "opt", "srv", "proc", "sys", "dev", "run", "var", "var/cache", "var/lib", "var/log", "var/spool"} {
		entries = append(entries, entry{path: dir, mode: fs.ModeDir | 0o755})
	}
	return append(entries, entry{path: "root", mode: fs.ModeDir | 0o700},
		entry{path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777}, entry{path: "var/tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777})
}

func (b busybox) build(ctx context.Context, root string, progress func(string)) error {
	place, err := b.find()
	if err != nil {
		return err
	}
	progress("making base of " + place)
	if err := writeEntries(root); err != nil {
		return fmt.Errorf("image base: %w", err)
	}
	data, err := os.ReadFile(place)
	if err != nil {
		return fmt.Errorf("image base: %w", err)
	}
	if err := writeMode(filepath.Join(root, "bin/busybox"), data, 0o755); err != nil {
		return fmt.Errorf("image base: %w", err)
	}
	if err := linkApplets(ctx, place, root); err != nil {
		return fmt.Errorf("image base: applets: %w", err)
	}
	return nil
}

func writeEntries(root string) error {
	entries := baseEntries()
	for _, e := range entries {
		if !e.mode.IsDir() {
			continue
		}
		dir := filepath.Join(root, e.path)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, e.mode&^fs.ModeDir)); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if e.mode.IsDir() {
			continue
		}
		if err := writeMode(filepath.Join(root, e.path), []byte(e.text), e.mode); err != nil {
			return err
		}
	}
	return os.Symlink("/run", filepath.Join(root, "var/run"))
}

func writeMode(name string, data []byte, mode fs.FileMode) error {
	return errors.Join(os.WriteFile(name, data, mode), os.Chmod(name, mode))
}

// linkApplets asks the binary for its applets and where they belong.
func linkApplets(ctx context.Context, place, root string) error {
	out, err := exec.CommandContext(ctx, place, "--list-full").Output()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		applet := path.Clean("/" + lines.Text())[1:]
		if applet == "" || applet == "bin/busybox" || strings.Count(applet, "/") > 2 {
			continue
		}
		target := strings.Repeat("../", strings.Count(applet, "/")) + "bin/busybox"
		if err := os.MkdirAll(filepath.Join(root, path.Dir(applet)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(root, applet)); err != nil {
			return err
		}
	}
	return lines.Err()
}

// hashed is a file's hash, good while the file looks the same.
type hashed struct {
	size int64
	time time.Time
	sum  string
}

// hashFile hashes a file, or remembers: it is asked at every create.
func (s *Store) hashFile(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	known, ok := s.hashes[name]
	s.mu.Unlock()
	if ok && known.size == info.Size() && known.time.Equal(info.ModTime()) {
		return known.sum, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	known = hashed{size: info.Size(), time: info.ModTime(), sum: hex.EncodeToString(sum[:])}
	s.mu.Lock()
	s.hashes[name] = known
	s.mu.Unlock()
	return known.sum, nil
}
