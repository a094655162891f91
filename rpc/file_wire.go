package rpc

import (
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

// pathToWire returns a path as a string of the wire, and its bytes where that
// lost something.
func pathToWire(path string) (string, []byte) {
	if utf8.ValidString(path) {
		return path, nil
	}
	return text(path), []byte(path)
}

func pathFromWire(path string, raw []byte) string {
	if len(raw) > 0 {
		return string(raw)
	}
	return path
}

func infoToWire(f holdfast.FileInfo) *v1.FileInfo {
	path, raw := pathToWire(f.Path)
	return &v1.FileInfo{
		Path: path, RawPath: raw, Kind: enum[v1.FileInfo_Kind](v1.FileInfo_Kind_value, f.Kind),
		Size: f.Size, Mode: f.Mode, Uid: uint32(f.UID), Gid: uint32(f.GID),
		ModifiedAt: stamp(f.ModifiedAt), Target: text(f.Target),
	}
}

func infoFromWire(f *v1.FileInfo) holdfast.FileInfo {
	return holdfast.FileInfo{
		Path: pathFromWire(f.GetPath(), f.GetRawPath()), Kind: word[holdfast.FileKind](v1.FileInfo_Kind_name, f.GetKind()),
		Size: f.GetSize(), Mode: f.GetMode(), UID: int(f.GetUid()), GID: int(f.GetGid()),
		ModifiedAt: instant(f.GetModifiedAt()), Target: f.GetTarget(),
	}
}

func headerToWire(sandbox holdfast.SandboxID, in holdfast.WriteFile) *v1.WriteFileHeader {
	return &v1.WriteFileHeader{SandboxId: string(sandbox), Path: in.Path, Mode: in.Mode, Append: in.Append, CreateParents: in.CreateParents}
}

func headerFromWire(h *v1.WriteFileHeader) (holdfast.SandboxID, holdfast.WriteFile) {
	return holdfast.SandboxID(h.GetSandboxId()),
		holdfast.WriteFile{Path: h.GetPath(), Mode: h.GetMode(), Append: h.GetAppend(), CreateParents: h.GetCreateParents()}
}

func writtenToWire(w holdfast.FileWritten) *v1.WriteFileResponse {
	return &v1.WriteFileResponse{Info: infoToWire(w.Info), Bytes: w.Bytes, Sha256: w.SHA256}
}

func writtenFromWire(w *v1.WriteFileResponse) holdfast.FileWritten {
	return holdfast.FileWritten{Info: infoFromWire(w.GetInfo()), Bytes: w.GetBytes(), SHA256: w.GetSha256()}
}

func changeToWire(e holdfast.FileEvent) *v1.WatchDirectoryResponse {
	path, raw := pathToWire(e.Path)
	return &v1.WatchDirectoryResponse{Event: &v1.WatchDirectoryResponse_Change{Change: &v1.FileEvent{
		Path: path, RawPath: raw, Kind: enum[v1.FileEvent_Kind](v1.FileEvent_Kind_value, e.Kind),
	}}}
}

func changeFromWire(e *v1.FileEvent) holdfast.FileEvent {
	return holdfast.FileEvent{Path: pathFromWire(e.GetPath(), e.GetRawPath()), Kind: word[holdfast.FileEventKind](v1.FileEvent_Kind_name, e.GetKind())}
}

func entriesToWire(all []holdfast.FileInfo) *v1.ListDirectoryResponse {
	return &v1.ListDirectoryResponse{Files: each(all, infoToWire)}
}

func entriesFromWire(all *v1.ListDirectoryResponse) []holdfast.FileInfo {
	return each(all.GetFiles(), infoFromWire)
}
