package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/holdfast-dev/holdfast"
)

type path struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path" jsonschema:"absolute"`
}

type readFile struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path" jsonschema:"absolute"`
	Offset    int64  `json:"offset,omitempty" jsonschema:"the first byte wanted"`
}

// content is a part of a file.
type content struct {
	Content text  `json:"content"`
	Offset  int64 `json:"offset"`
	Size    int64 `json:"size" jsonschema:"of the whole file, in bytes"`
	More    bool  `json:"more" jsonschema:"the file goes on behind what was returned"`
}

type writeFile struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path" jsonschema:"absolute; missing directories are made"`
	Text      string `json:"text,omitempty" jsonschema:"the whole new content"`
	Base64    string `json:"base64,omitempty" jsonschema:"in place of text, for what is not text"`
}

type written struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Next   string `json:"next"`
}

type entry struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Size int64  `json:"size"`
	Mode uint32 `json:"mode"`
}

type listing struct {
	Entries []entry `json:"entries"`
}

// files are the tools of files.
func (t tools) files(s *mcp.Server) {
	add(s, tool("read_file", "Reads a regular file of a READY sandbox from an offset on, at most 1 MiB.", reads), t.readFile)
	add(s, tool("write_file", "Replaces a file as a whole: all of the old content, or all of the new. A repeat writes the same again.", repeats), t.writeFile)
	add(s, tool("list_directory", "Lists a directory of a READY sandbox by name.", reads), func(ctx context.Context, in path) (listing, error) {
		infos, err := t.client.ListDirectory(ctx, ids(in.SandboxID), in.Path)
		out := listing{Entries: []entry{}}
		for _, i := range infos {
			out.Entries = append(out.Entries, entry{Path: i.Path, Kind: string(i.Kind), Size: i.Size, Mode: i.Mode})
		}
		return out, err
	})
}

func (t tools) readFile(ctx context.Context, in readFile) (_ content, err error) {
	info, body, err := t.client.ReadFile(ctx, ids(in.SandboxID), holdfast.ReadFile{Path: in.Path, Offset: in.Offset, Length: maxRead})
	if err != nil {
		return content{}, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	data, err := io.ReadAll(io.LimitReader(body, maxRead))
	if err != nil {
		return content{}, err
	}
	return content{Content: textOf(data), Offset: in.Offset, Size: info.Size, More: in.Offset+int64(len(data)) < info.Size}, nil
}

func (t tools) writeFile(ctx context.Context, in writeFile) (written, error) {
	data := []byte(in.Text)
	if in.Base64 != "" {
		if in.Text != "" {
			return written{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "text and base64 are both given: give one")
		}
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Base64); err != nil {
			return written{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "base64 is not base64: %v", err)
		}
	}
	out, err := t.client.Upload(ctx, ids(in.SandboxID), holdfast.WriteFile{Path: in.Path, CreateParents: true}, bytes.NewReader(data))
	return written{Path: in.Path, Size: out.Info.Size, SHA256: out.SHA256, Next: "it is there as a whole; the same call again changes nothing"}, err
}
