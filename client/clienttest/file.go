package clienttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

// Put writes a file in every sandbox.
func (f *Fake) Put(path string, content []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[path] = content
}

// Content reads a file; nil where there is none.
func (f *Fake) Content(path string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.files[path]
}

func (f *Fake) info(path string) (holdfast.FileInfo, error) {
	content, ok := f.files[path]
	if !ok {
		return holdfast.FileInfo{}, holdfast.E(holdfast.NotFound, holdfast.ReasonNoSuchFile, "%s: no such file", path)
	}
	return holdfast.FileInfo{Path: path, Kind: holdfast.FileRegular, Size: int64(len(content)), Mode: 0o644, ModifiedAt: f.now()}, nil
}

// withFile runs act on a path's info, locked, in a READY sandbox.
func (f *Fake) withFile(ctx context.Context, call Call, sandbox holdfast.SandboxID, path string, act func(holdfast.FileInfo) error) error {
	if err := holdfast.CheckPath("path", path); err != nil {
		return err
	}
	return f.do(ctx, call, func() error {
		if err := f.ready(sandbox); err != nil {
			return err
		}
		info, err := f.info(path)
		if err != nil {
			return err
		}
		return act(info)
	})
}

// ReadFile reads a file as it is.
func (f *Fake) ReadFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ReadFile) (out holdfast.FileInfo, content io.ReadCloser, err error) {
	err = f.withFile(ctx, Call{"ReadFile", in}, sandbox, in.Path, func(info holdfast.FileInfo) error {
		out = info
		data := f.files[in.Path]
		data = data[min(in.Offset, int64(len(data))):]
		if in.Length > 0 {
			data = data[:min(in.Length, int64(len(data)))]
		}
		content = io.NopCloser(bytes.NewReader(data))
		return nil
	})
	return out, content, err
}

// WriteFile replaces a file when all of it is there, or appends what is.
func (f *Fake) WriteFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WriteFile, content io.Reader) (out holdfast.FileWritten, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	if err := f.do(ctx, Call{"WriteFile", in}, func() error { return f.ready(sandbox) }); err != nil {
		return out, err
	}
	data, err := io.ReadAll(content)
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.broadcast()
	if err != nil {
		return out, err
	}
	if in.Append {
		f.files[in.Path] = append(bytes.Clone(f.files[in.Path]), data...)
	} else {
		f.files[in.Path] = data
	}
	out.Info, err = f.info(in.Path)
	hashed := sha256.Sum256(data)
	out.Bytes, out.SHA256 = int64(len(data)), hex.EncodeToString(hashed[:])
	return out, err
}

// StatFile describes a file.
func (f *Fake) StatFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, path string) (out holdfast.FileInfo, err error) {
	err = f.withFile(ctx, Call{"StatFile", path}, sandbox, path, func(info holdfast.FileInfo) error { out = info; return nil })
	return out, err
}

// ListDirectory lists the files directly below a path, by name.
func (f *Fake) ListDirectory(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, directory string) (out []holdfast.FileInfo, err error) {
	err = f.do(ctx, Call{"ListDirectory", directory}, func() error {
		if err := f.ready(sandbox); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(f.files)) {
			if path.Dir(name) == path.Clean(directory) {
				info, err := f.info(name)
				if err != nil {
					return err
				}
				out = append(out, info)
			}
		}
		return nil
	})
	return out, err
}

// MakeDirectory makes nothing: directories are where files are.
func (f *Fake) MakeDirectory(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, path string, mode uint32) (holdfast.FileInfo, error) {
	err := f.do(ctx, Call{"MakeDirectory", path}, func() error { return f.ready(sandbox) })
	return holdfast.FileInfo{Path: path, Kind: holdfast.FileDirectory, Mode: mode}, err
}

// MoveFile renames a file.
func (f *Fake) MoveFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, from, to string) (out holdfast.FileInfo, err error) {
	err = f.withFile(ctx, Call{"MoveFile", from}, sandbox, from, func(holdfast.FileInfo) error {
		f.files[to] = f.files[from]
		delete(f.files, from)
		out, err = f.info(to)
		return err
	})
	return out, err
}

// RemoveFile removes a file, or all below a path.
func (f *Fake) RemoveFile(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, path string, recursive bool) error {
	return f.do(ctx, Call{"RemoveFile", path}, func() error {
		for name := range f.files {
			if name == path || recursive && strings.HasPrefix(name, path+"/") {
				delete(f.files, name)
			}
		}
		return f.ready(sandbox)
	})
}

// WatchDirectory starts, and yields CREATED for each file that appears below.
func (f *Fake) WatchDirectory(ctx context.Context, _ holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WatchDirectory, yield func(holdfast.FileEvent) error) error {
	known := map[string]bool{}
	err := f.do(ctx, Call{"WatchDirectory", in}, func() error {
		for name := range f.files {
			known[name] = true
		}
		return f.ready(sandbox)
	})
	if err != nil {
		return err
	}
	in.Started()
	for {
		f.mu.Lock()
		seen, names := f.changed, slices.Sorted(maps.Keys(f.files))
		f.mu.Unlock()
		for _, name := range names {
			if known[name] || !strings.HasPrefix(name, in.Path) {
				continue
			}
			known[name] = true
			if err := yield(holdfast.FileEvent{Path: name, Kind: holdfast.FileCreated}); err != nil {
				return err
			}
		}
		if err := f.wait(ctx, seen); err != nil {
			return err
		}
	}
}
