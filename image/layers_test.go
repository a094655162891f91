package image_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/image"
	"github.com/holdfast-dev/holdfast/layer"
)

// bucket is a store that counts, and fails as it is told.
type bucket struct {
	blob.Store
	mu    sync.Mutex
	gets  int
	cut   int           // bytes after which the store stops answering; 0: never
	block chan struct{} // nil: it answers at once
}

var errCut = errors.New("connection reset")

func (b *bucket) Get(ctx context.Context, key string) (io.ReadCloser, blob.Info, error) {
	b.mu.Lock()
	b.gets++
	cut, block := b.cut, b.block
	b.mu.Unlock()
	if block != nil {
		<-block
	}
	r, info, err := b.Store.Get(ctx, key)
	if err == nil && cut > 0 {
		r = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(r, int64(cut)), failingReader{}), r}
	}
	return r, info, err
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errCut }

// shelf is layers of one host, and the store that they come from.
type shelf struct {
	*image.Layers
	t      *testing.T
	dir    string
	bucket *bucket
	now    time.Time
	config image.LayersConfig
}

func newShelf(t *testing.T, config image.LayersConfig) *shelf {
	t.Helper()
	store, err := blob.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{t: t, dir: t.TempDir(), bucket: &bucket{Store: store}, now: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC), config: config}
	s.config.Blobs, s.config.Now = s.bucket, func() time.Time { return s.now }
	s.open()
	return s
}

func (s *shelf) open() {
	s.t.Helper()
	layers, err := image.NewLayers(s.dir, s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Layers = layers
	s.t.Cleanup(layers.Close)
}

// put packs a file into a layer and stores it.
func (s *shelf) put(content string) holdfast.Layer {
	s.t.Helper()
	from := s.t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "file"), []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	var packed bytes.Buffer
	if _, err := layer.Pack(s.t.Context(), from, &packed); err != nil {
		s.t.Fatal(err)
	}
	sum := sha256.Sum256(packed.Bytes())
	key := "checkpoints/" + hex.EncodeToString(sum[:8]) + "/1"
	info, err := s.bucket.Put(s.t.Context(), key, &packed)
	if err != nil {
		s.t.Fatal(err)
	}
	return holdfast.Layer{Key: key, Size: info.Size, SHA256: info.SHA256}
}

func (s *shelf) has(one holdfast.Layer, content string) {
	s.t.Helper()
	dir, err := s.Ensure(s.t.Context(), one, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != content {
		s.t.Fatalf("the layer has %q, %v; want %q", got, err, content)
	}
}

// files lists what is in the host's directory but locks.
func (s *shelf) files() []string {
	s.t.Helper()
	var found []string
	for _, pattern := range []string{"layer-*", "building/*"} {
		names, err := filepath.Glob(filepath.Join(s.dir, pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, n := range names {
			if !strings.HasSuffix(n, ".lock") {
				found = append(found, filepath.Base(n))
			}
		}
	}
	return found
}

func TestALayerIsFetchedOnceHoweverManyAsk(t *testing.T) {
	s := newShelf(t, image.LayersConfig{})
	one := s.put("the same for all")
	s.bucket.block = make(chan struct{})
	var group sync.WaitGroup
	errs := make(chan error, 8)
	for range 8 {
		group.Go(func() {
			_, err := s.Ensure(t.Context(), one, nil)
			errs <- err
		})
	}
	close(s.bucket.block)
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	s.has(one, "the same for all")
	s.open() // as after a restart
	s.has(one, "the same for all")
	if s.bucket.gets != 1 {
		t.Errorf("fetched %d times", s.bucket.gets)
	}
}

func TestWhatTheStoreLostOrDamagedIsARefusal(t *testing.T) {
	s := newShelf(t, image.LayersConfig{})
	whole := s.put("good")
	content, _, err := s.bucket.Get(t.Context(), whole.Key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(content)
	if err = errors.Join(err, content.Close()); err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(raw)
	flipped[600] ^= 1 // of the file's header
	changed := bytes.Replace(raw, []byte("good"), []byte("evil"), 1)
	padding := slices.Clone(raw)
	padding[len(padding)-1] = 1 // behind the tar's own end
	for name, c := range map[string]struct {
		stored []byte
		layer  holdfast.Layer
	}{
		"nothing is there":       {nil, whole},
		"its content is another": {changed, whole},
		"it is no tar":           {flipped, whole},
		"its last byte":          {padding, whole},
		"it was cut":             {raw[:len(raw)-512], whole},
		"it is longer":           {append(slices.Clone(raw), 0), whole},
		"another sum is wanted":  {raw, holdfast.Layer{Key: whole.Key, Size: whole.Size, SHA256: strings.Repeat("ab", 32)}},
	} {
		if c.stored == nil {
			err = s.bucket.Delete(t.Context(), c.layer.Key)
		} else {
			_, err = s.bucket.Put(t.Context(), c.layer.Key, bytes.NewReader(c.stored))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Ensure(t.Context(), c.layer, nil); holdfast.ReasonOf(err) != holdfast.ReasonBlobGone || holdfast.Transient(err) {
			t.Errorf("%s: %v", name, err)
		}
		if left := s.files(); len(left) != 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
	if _, err := s.bucket.Put(t.Context(), whole.Key, bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	s.has(whole, "good")
}

func TestAStoreThatStopsAnsweringIsTriedAgain(t *testing.T) {
	s := newShelf(t, image.LayersConfig{})
	one := s.put("at last")
	for _, cut := range []int{1, 700, int(one.Size)} {
		s.bucket.cut = cut
		if _, err := s.Ensure(t.Context(), one, nil); holdfast.CodeOf(err) != holdfast.Unavailable || !errors.Is(err, errCut) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
		if left := s.files(); len(left) != 0 {
			t.Errorf("left %q", left)
		}
	}
	s.bucket.cut = 0
	s.has(one, "at last")
}

func TestTooMuchForOneLayerIsRefused(t *testing.T) {
	s := newShelf(t, image.LayersConfig{MaxBytes: 100})
	if _, err := s.Ensure(t.Context(), s.put(strings.Repeat("x", 101)), nil); holdfast.ReasonOf(err) != holdfast.ReasonBlobGone {
		t.Errorf("got %v", err)
	}
	for name, bad := range map[string]holdfast.Layer{
		"no sum": {Key: "a/1"}, "no key": {SHA256: strings.Repeat("ab", 32)}, "a path": {Key: "../a", SHA256: strings.Repeat("ab", 32)},
		"a sum that is a path": {Key: "a/1", SHA256: strings.Repeat("../", 21) + "a"},
	} {
		if _, err := s.Ensure(t.Context(), bad, nil); holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatADeadProcessLeftIsNoLayer(t *testing.T) {
	s := newShelf(t, image.LayersConfig{})
	one := s.put("whole")
	s.has(one, "whole")
	name := s.files()[0]
	// It died while it unpacked, and while another was removed.
	for from, to := range map[string]string{name: "building/" + name, "building/" + name + ".lock": "building/gone-" + name} {
		if err := os.Rename(filepath.Join(s.dir, from), filepath.Join(s.dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.dir, "building", name, "rootfs", "file"), []byte("hal"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.open()
	s.has(one, "whole")
	if left := s.files(); !slices.Equal(left, []string{name}) {
		t.Errorf("there is %q", left)
	}
}

func TestPruneTakesTheLongestUnusedAndNothingThatIsNeeded(t *testing.T) {
	s := newShelf(t, image.LayersConfig{Kept: time.Hour, Spare: 300})
	var all []holdfast.Layer
	for i := range 6 {
		all = append(all, s.put(fmt.Sprint(i)+strings.Repeat("x", 99)))
		s.has(all[i], fmt.Sprint(i)+strings.Repeat("x", 99))
		s.now = s.now.Add(11 * time.Minute)
	}
	s.has(all[1], "1"+strings.Repeat("x", 99)) // used anew, just now
	needed := map[string]bool{all[0].SHA256: true}
	prune := func(want int) {
		t.Helper()
		got, err := s.Prune(t.Context(), func(sum string) bool { return needed[sum] })
		if err != nil || got != want {
			t.Fatalf("%d removed, %v; want %d", got, err, want)
		}
	}
	there := func(want ...int) {
		t.Helper()
		var names []string
		for _, i := range want {
			names = append(names, "layer-"+all[i].SHA256[16:48]+"-"+all[i].SHA256[:16])
		}
		slices.Sort(names)
		if got := s.files(); !slices.Equal(got, names) {
			t.Fatalf("there is %q, want %q", got, names)
		}
	}
	prune(2) // 2 and 3: over what is to spare, after 1, 5 and 4
	there(0, 1, 4, 5)
	s.now = s.now.Add(time.Hour)
	s.has(all[4], "4"+strings.Repeat("x", 99))
	prune(2)
	there(0, 4)
	needed = nil
	s.now = s.now.Add(2 * time.Hour)
	prune(2)
	there()
	s.has(all[0], "0"+strings.Repeat("x", 99))
}

func TestWhatWasAskedForJustNowStaysWhateverIsSaidOfIt(t *testing.T) {
	s := newShelf(t, image.LayersConfig{Kept: time.Nanosecond, Spare: 1})
	one := s.put("just unpacked")
	s.has(one, "just unpacked")
	s.now = s.now.Add(time.Minute)
	if n, err := s.Prune(t.Context(), func(string) bool { return false }); err != nil || n != 0 {
		t.Errorf("%d removed, %v", n, err)
	}
}
