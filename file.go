package holdfast

import (
	"context"
	"io"
	"time"
)

// FileKind is what a path names.
type FileKind string

// The kinds of files.
const (
	FileRegular   FileKind = "FILE"
	FileDirectory FileKind = "DIRECTORY"
	FileSymlink   FileKind = "SYMLINK"
	FileOther     FileKind = "OTHER" // a device, socket or pipe
)

// FileInfo describes a path in a guest. Symbolic links are not followed.
type FileInfo struct {
	Path       string    `json:"path"` // absolute
	Kind       FileKind  `json:"kind"`
	Size       int64     `json:"size"` // bytes
	Mode       uint32    `json:"mode"` // permission bits
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty"` // of a symbolic link
}

// MaxPath bounds a path, in bytes (PATH_MAX with its NUL).
const MaxPath = 4095

// ReadFile addresses a part of a file.
type ReadFile struct {
	Path   string `json:"path"`   // absolute
	Offset int64  `json:"offset"` // bytes
	Length int64  `json:"length"` // bytes; zero: to the end
}

// WriteFile says where and how to write. By default it replaces atomically: all
// of the old, or all of the new (contract: A14).
type WriteFile struct {
	Path          string `json:"path"`           // absolute
	Mode          uint32 `json:"mode"`           // permission bits; zero: 0644, or what the file replaced has
	Append        bool   `json:"append"`         // instead of replacing; an interruption may leave a part
	CreateParents bool   `json:"create_parents"` // make missing directories, mode 0755
}

// FileWritten is the answer to a write: of the whole file after a replace, of
// the part written after an append.
type FileWritten struct {
	Info   FileInfo `json:"info"`
	Bytes  int64    `json:"bytes"`  // written by this call
	SHA256 string   `json:"sha256"` // of what this call wrote, lower-case hexadecimal
}

// FileEventKind is what happened to a path.
type FileEventKind string

// The events of WatchDirectory.
const (
	FileCreated  FileEventKind = "CREATED"
	FileWrote    FileEventKind = "WRITTEN"
	FileRemoved  FileEventKind = "REMOVED"
	FileRenamed  FileEventKind = "RENAMED"
	FileModified FileEventKind = "ATTRIBUTES"
)

// FileEvent is one change under a watched directory.
type FileEvent struct {
	Path string        `json:"path"`
	Kind FileEventKind `json:"kind"`
}

// GuestFiles is the files of one boot (H11), offered by the guest agent from
// inside the instance, so that no path can name a file of the host.
type GuestFiles interface {
	// ReadFile refuses what is not a regular file. The reader must be closed.
	ReadFile(ctx context.Context, in ReadFile) (FileInfo, io.ReadCloser, error)
	WriteFile(ctx context.Context, in WriteFile, content io.Reader) (FileWritten, error)
	StatFile(ctx context.Context, path string) (FileInfo, error)
	ListDirectory(ctx context.Context, path string) ([]FileInfo, error)
	// MakeDirectory makes missing parents too and succeeds where one exists.
	MakeDirectory(ctx context.Context, path string, mode uint32) (FileInfo, error)
	MoveFile(ctx context.Context, from, to string) (FileInfo, error)
	RemoveFile(ctx context.Context, path string, recursive bool) error
	// WatchDirectory first yields nothing but calls started once the watch
	// stands, then yields events until ctx ends.
	WatchDirectory(ctx context.Context, in WatchDirectory, yield func(FileEvent) error) error
}

// WatchDirectory addresses a watch.
type WatchDirectory struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
	Started   func() `json:"-"`
}

// FileService is the same for callers, addressed by sandbox.
type FileService interface {
	ReadFile(ctx context.Context, caller Caller, sandbox SandboxID, in ReadFile) (FileInfo, io.ReadCloser, error)
	WriteFile(ctx context.Context, caller Caller, sandbox SandboxID, in WriteFile, content io.Reader) (FileWritten, error)
	StatFile(ctx context.Context, caller Caller, sandbox SandboxID, path string) (FileInfo, error)
	ListDirectory(ctx context.Context, caller Caller, sandbox SandboxID, path string) ([]FileInfo, error)
	MakeDirectory(ctx context.Context, caller Caller, sandbox SandboxID, path string, mode uint32) (FileInfo, error)
	MoveFile(ctx context.Context, caller Caller, sandbox SandboxID, from, to string) (FileInfo, error)
	RemoveFile(ctx context.Context, caller Caller, sandbox SandboxID, path string, recursive bool) error
	WatchDirectory(ctx context.Context, caller Caller, sandbox SandboxID, in WatchDirectory, yield func(FileEvent) error) error
}

// Guest is both halves of one boot's guest agent.
type Guest struct {
	Processes GuestProcesses
	Files     GuestFiles
	// Log streams the console of the instance from offset (host agents only).
	Log func(ctx context.Context, offset int64, follow bool, yield func(OutputChunk) error) error
	// Status tells whether the guest is ready, and why it failed.
	Status func(ctx context.Context) (GuestStatus, error)
}

// GuestStatus is a guest agent's word about its own boot.
type GuestStatus struct {
	Instance    InstanceID `json:"instance"`
	Incarnation int64      `json:"incarnation"`
	Ready       bool       `json:"ready"`
	Failure     *Failure   `json:"failure,omitempty"`
}
