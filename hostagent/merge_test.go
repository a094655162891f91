package hostagent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/layer"
)

// heap is layers that lie in directories by their keys.
type heap struct {
	pile
	dir string
}

func (h heap) Ensure(_ context.Context, one holdfast.Layer, _ func(string)) (string, error) {
	return filepath.Join(h.dir, one.SHA256), nil
}

// ground is an image in a directory.
type ground struct{ dir string }

func (g ground) Ensure(context.Context, string, func(string)) (string, error) { return g.dir, nil }

func put(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), "mkdir")
	must(t, os.WriteFile(path, []byte(content), 0o644), "write")
}

// A chain that is as long as it may be is merged: the next fork is the image and one
// layer, and has the same files.
func TestAChainThatIsTooLongIsMergedIntoOneLayer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("whiteouts need root")
	}
	dir, d := t.TempDir(), newDepot(t)
	base := filepath.Join(dir, "base")
	put(t, filepath.Join(base, "kept"), "of the base")
	put(t, filepath.Join(base, "gone"), "of the base")
	b := start(t, newWorld(), t.TempDir(), newClock(), withBlobs(d), func(b *bench) {
		b.config.MaxChain, b.config.Layers, b.config.Images = 3, heap{dir: dir}, ground{base}
	})
	level := b.level(1, 1, holdfast.DesiredRunning)
	for i := range 3 {
		put(t, filepath.Join(dir, fmt.Sprint(i), "top"), fmt.Sprint(i))
		put(t, filepath.Join(dir, fmt.Sprint(i), fmt.Sprint("of-", i)), "here")
		level.Spec.Layers = append(level.Spec.Layers, holdfast.Layer{Key: fmt.Sprint("k/", i), SHA256: fmt.Sprint(i)})
	}
	b.ensure(level, holdfast.InstanceRunning)
	upper := t.TempDir()
	put(t, filepath.Join(upper, "top"), "of the instance")
	must(t, unix.Mknod(filepath.Join(upper, "gone"), unix.S_IFCHR, 0), "whiteout")
	must(t, unix.Mknod(filepath.Join(upper, "of-1"), unix.S_IFCHR, 0), "whiteout")
	var packed bytes.Buffer
	_, err := layer.Pack(t.Context(), upper, &packed)
	must(t, err, "pack")
	b.driver.change(func() { b.driver.instances[refOf(1)].content = packed.String() })

	o := b.copied(b.copyLevel(1, holdfast.CheckpointPresent), holdfast.CopyPresent)
	if len(o.Layers) != 1 || o.Added != o.Layers[0].Size {
		t.Fatalf("observed %+v", o)
	}
	var names []string
	merged := d.content(t, o.Layers[0].Key)
	to := t.TempDir()
	_, err = layer.Unpack(t.Context(), to, strings.NewReader(merged), layer.Overlay, layer.Limits{})
	must(t, err, "unpack")
	entries, err := os.ReadDir(to)
	must(t, err, "read")
	for _, e := range entries {
		names = append(names, e.Name()+" "+e.Type().String()[:1])
	}
	if got := strings.Join(names, ", "); got != "gone D, of-0 -, of-2 -, top -" {
		t.Errorf("the layer has %s", got)
	}
	if got, err := os.ReadFile(filepath.Join(to, "top")); err != nil || string(got) != "of the instance" {
		t.Errorf("the topmost file is %q, %v", got, err)
	}
	if left := b.parts(); len(left) != 0 {
		t.Errorf("left %q", left)
	}

	// An upload that fails after it is tried again with the merged bytes.
	d.meet = func(_ context.Context, point string) error {
		if point == "before Put" {
			return io.ErrUnexpectedEOF
		}
		return nil
	}
	again := b.copyLevel(1, holdfast.CheckpointPresent)
	again.Checkpoint = "ck-00000000000000000000000002"
	b.notCopied(again, holdfast.ReasonStorage)
	d.change(func() { d.meet = func(context.Context, string) error { return nil } })
	if o := b.copied(again, holdfast.CopyPresent); len(o.Layers) != 1 || d.content(t, o.Layers[0].Key) != merged {
		t.Errorf("observed %+v", o)
	}
}
