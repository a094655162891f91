package acceptance

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// contract: E1
func TestE1_SandboxesOfARegistrysImageATarAndADirectory(t *testing.T) {
	local := t.TempDir()
	data := tiny(t)
	if err := os.WriteFile(filepath.Join(local, "tiny.tar"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	untar(t, data, filepath.Join(local, "root"))
	s := serve(t, "--local-images", local)
	for _, environment := range []string{"oci:" + pushed(t, data), "tar:tiny.tar", "dir:root"} {
		sb, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: environment, Environment: environment})
		if err != nil {
			t.Fatalf("%s: %v\n%s", environment, err, s.Log())
		}
		s.keep(sb.ID)
		out, errs, code := s.sh(sb.ID, "cat /greeting; echo more > /greeting; cat /greeting")
		if code != 0 || out != "made elsewhere\nmore\n" {
			t.Errorf("%s: exit %d, %q %s", environment, code, out, errs)
		}
	}
	again, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "again", Environment: "dir:root"})
	if err != nil {
		t.Fatal(err)
	}
	s.keep(again.ID)
	if out, _, _ := s.sh(again.ID, "cat /greeting"); out != "made elsewhere\n" {
		t.Errorf("what one sandbox wrote is in the next one's image: %q", out)
	}
	for environment, says := range map[string]string{"tar:missing": "missing", "oci:127.0.0.1:1/none": "cannot be reached"} {
		ctx := t.Context()
		_, err := s.dial(client.WithOverallTimeout(5*time.Second)).CreateSandbox(ctx, holdfast.CreateSandbox{RequestID: environment, Environment: environment, TTL: holdfast.MinTTL})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", environment, err, says)
		}
	}
}

// tiny is a root file system of one static program, with few of the directories
// that are usually there.
func tiny(t *testing.T) []byte {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range []struct {
		header  tar.Header
		content []byte
	}{
		{tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil},
		{tar.Header{Name: "bin/busybox", Mode: 0o755}, busybox},
		{tar.Header{Name: "bin/sh", Typeflag: tar.TypeSymlink, Linkname: "/bin/busybox"}, nil},
		{tar.Header{Name: "bin/cat", Typeflag: tar.TypeLink, Linkname: "bin/busybox"}, nil},
		{tar.Header{Name: "greeting", Mode: 0o644}, []byte("made elsewhere\n")},
	} {
		e.header.Size = int64(len(e.content))
		if err := w.WriteHeader(&e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// untar unpacks what tiny made, by plain means.
func untar(t *testing.T, data []byte, root string) {
	t.Helper()
	archive := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		case tar.TypeLink:
			err = os.Link(filepath.Join(root, h.Linkname), path)
		default:
			var content []byte
			if content, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(path, content, os.FileMode(h.Mode).Perm())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// pushed serves an image of one layer from a registry of this test.
func pushed(t *testing.T, data []byte) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://") + "/team/tiny:1"
	push(t, at, data, v1.Config{})
	return at
}

// push puts an image of one layer where its tag says, whatever was there.
func push(t *testing.T, at string, data []byte, says v1.Config) {
	t.Helper()
	ref, err := name.ParseReference(at)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: goruntime.GOARCH, Config: says})
	if err == nil {
		image, err = mutate.AppendLayers(image, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
}

// contract: E1, E4. What is made of a registry's image runs as the image says, unless
// the recipe or the caller says otherwise; and what was built or copied above it stays
// above that very image when its tag moves.
func TestE1_WhatARegistrysImageSaysHoldsAndStaysWhenItsTagMoves(t *testing.T) {
	data := tiny(t)
	says := v1.Config{Env: []string{"PATH=/bin", "COLOUR=green", "SIZE=small"}, User: "4242", WorkingDir: "/srv/app",
		Entrypoint: []string{"/bin/false"}, Cmd: []string{"never"}}
	at := pushed(t, data)
	push(t, at, data, says)
	s := serve(t)
	look := "echo $COLOUR $SIZE $(busybox pwd) $(busybox id -u) $(cat /greeting)"
	create := func(in holdfast.CreateSandbox) holdfast.SandboxID {
		t.Helper()
		sb, err := s.client.CreateSandbox(t.Context(), in)
		if err != nil {
			t.Fatalf("%+v: %v\n%s", in, err, s.Log())
		}
		s.keep(sb.ID)
		return sb.ID
	}
	plain := create(holdfast.CreateSandbox{RequestID: "plain", Environment: "oci:" + at, Env: map[string]string{"SIZE": "large"}})
	s.wantOutput(plain, look, "green large /srv/app 4242 made elsewhere")
	checkpoint := s.take("c", plain)

	s.environment("name: own\nbase: oci:" + at + "\nsetup: " + look + "\n")
	s.environment("name: other\nbase: oci:" + at + "\nuser: 7:8\nworkdir: /srv/own\nenv: {SIZE: huge}\nsetup: " + look + "\n")
	for name, want := range map[string]string{"own": "green small /srv/app 4242 made elsewhere\n", "other": "green huge /srv/own 0 made elsewhere\n"} {
		b, said := s.built(name, name)
		if b.State != holdfast.BuildReady || said != want {
			t.Fatalf("the setup of %s said %q, want %q: %+v\n%s", name, said, want, b.Failure, s.Log())
		}
	}

	moved := bytes.Replace(data, []byte("made elsewhere"), []byte("somewhere else"), 1)
	push(t, at, moved, v1.Config{Env: []string{"PATH=/bin", "COLOUR=red"}})
	s.wantOutput(create(holdfast.CreateSandbox{RequestID: "moved", Environment: "oci:" + at}), look, "red / 0 somewhere else")
	s.wantOutput(s.fork("f", checkpoint.ID).ID, look, "green large /srv/app 4242 made elsewhere")
	s.wantOutput(create(holdfast.CreateSandbox{RequestID: "built", Environment: "own"}), look, "green small /srv/app 4242 made elsewhere")
	se, err := s.client.CreateSession(t.Context(), holdfast.CreateSession{RequestID: "session", Environment: "other"})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.Log())
	}
	s.endsSession(se.ID)
	s.wantOutput(se.Sandbox, look, "green huge /srv/own 7 made elsewhere")
	at2, err := s.client.CreateCheckpoint(t.Context(), holdfast.CreateCheckpoint{RequestID: "cs", Source: string(se.ID)})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.Log())
	}
	fork, err := s.client.CreateSession(t.Context(), holdfast.CreateSession{RequestID: "sf", Source: at2.ID})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.Log())
	}
	s.endsSession(fork.ID)
	s.wantOutput(fork.Sandbox, look, "green huge /srv/own 7 made elsewhere")
}
