package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
)

func TestDirectory(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return open(t, t.TempDir()) })
}

func TestBucket(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for _, prefix := range []string{"", "/some/prefix"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			blobtest.Run(t, func(t *testing.T) blob.Store { return open(t, bucket(t)+prefix) })
		})
	}
}

func open(t *testing.T, place string) blob.Store {
	t.Helper()
	// A bucket's place has its settings behind the prefix.
	if base, rest, ok := strings.Cut(place, "?"); ok {
		if settings, prefix, ok := strings.Cut(rest, "/some"); ok {
			place = base + "/some" + prefix + "?" + settings
		}
	}
	s, err := blob.Open(t.Context(), place)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bucket starts an S3 server with one empty bucket.
func bucket(t *testing.T) string {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("holdfast"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	return "s3://holdfast?endpoint=" + server.URL + "&region=eu-west-1"
}

func TestOpenRefusesWhatItCannotBe(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	there := bucket(t)
	for place, says := range map[string]string{
		"ftp://host/dir":                                      "none of that kind",
		"s3://holdfast?endpoint=nonsense":                     "endpoint",
		"s3://holdfast?speed=high":                            "speed",
		strings.Replace(there, "holdfast", "other-bucket", 1): "no such bucket",
		filepath.Join(file, "below"):                          "not a directory",
	} {
		if _, err := blob.Open(t.Context(), place); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("open %s: %v, want it to say %q", place, err, says)
		}
	}
}

func TestVerifyTellsWhatIsNotWhatWasPut(t *testing.T) {
	s := open(t, t.TempDir())
	data := bytes.Repeat([]byte("holdfast "), 10_000)
	info, err := s.Put(t.Context(), "k", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(data)
	flipped[4000]++
	for name, c := range map[string]struct {
		data []byte
		ok   bool
	}{
		"whole": {data, true}, "cut": {data[:len(data)-1], false}, "longer": {append(bytes.Clone(data), 'x'), false},
		"flipped": {flipped, false}, "empty": {nil, false},
	} {
		_, err := io.Copy(io.Discard, blob.Verify(bytes.NewReader(c.data), info.Size, info.SHA256))
		if (err == nil) != c.ok || err != nil && !errors.Is(err, blob.ErrMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFilesOfWritersThatDiedAreRemoved(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	old, young := filepath.Join(dir, ".unfinished", "put-1"), filepath.Join(dir, ".unfinished", "put-2")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	yesterday := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(old, yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an abandoned file is still there: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a file that is being written was removed: %v", err)
	}
	infos, _, err := s.List(context.Background(), "", "", 10)
	if err != nil || len(infos) != 0 {
		t.Errorf("unfinished files are listed: %v, %v", infos, err)
	}
}
