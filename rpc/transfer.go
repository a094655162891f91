package rpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

// sum counts and hashes what passes, for the summary that ends a transfer.
type sum struct {
	bytes int64
	hash  hash.Hash
}

func newSum() *sum { return &sum{hash: sha256.New()} }

func (s *sum) add(data []byte) {
	s.bytes += int64(len(data))
	s.hash.Write(data) // never fails (hash.Hash)
}

func (s *sum) summary() *v1.FileSummary {
	return &v1.FileSummary{Bytes: s.bytes, Sha256: hex.EncodeToString(s.hash.Sum(nil))}
}

// differs says how what passed differs from what the sender says it sent. An
// empty summary says nothing but that this is the end.
func (s *sum) differs(sent *v1.FileSummary) string {
	got := s.summary()
	if sent.GetBytes() == 0 && sent.GetSha256() == "" {
		return ""
	}
	if got.GetBytes() == sent.GetBytes() && (sent.GetSha256() == "" || got.GetSha256() == sent.GetSha256()) {
		return ""
	}
	return fmt.Sprintf("%d bytes with SHA-256 %s arrived, %d with %s were sent", got.GetBytes(), got.GetSha256(), sent.GetBytes(), text(sent.GetSha256()))
}

// copyParts reads content to its end in parts that a message can hold. Only
// io.EOF itself is the end: a reader that was cut says something else.
func copyParts(content io.Reader, sum *sum, send func([]byte) error) error {
	part := make([]byte, maxChunk)
	for {
		n, err := content.Read(part)
		if n > 0 {
			sum.add(part[:n])
			if err := send(part[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF { //nolint:errorlint // io.Reader's word for the end
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// sendFile sends a file: its info, its content, and the summary of it.
func sendFile(info holdfast.FileInfo, content io.Reader, send func(*v1.ReadFileResponse) error) error {
	if err := send(&v1.ReadFileResponse{Part: &v1.ReadFileResponse_Info{Info: infoToWire(info)}}); err != nil {
		return err
	}
	sent := newSum()
	err := copyParts(content, sent, func(data []byte) error {
		return send(&v1.ReadFileResponse{Part: &v1.ReadFileResponse_Data{Data: data}})
	})
	if err != nil {
		return err
	}
	return send(&v1.ReadFileResponse{Part: &v1.ReadFileResponse_Summary{Summary: sent.summary()}})
}

// sendUpload sends a write: its header, its content, and the summary of it. An
// error is the content's; when the server stopped listening it returns nil, and
// the answer says why.
func sendUpload(header *v1.WriteFileHeader, content io.Reader, send func(*v1.WriteFileRequest) error) error {
	refused := false
	offer := func(m *v1.WriteFileRequest) error {
		err := send(m)
		refused = err != nil
		return err
	}
	if offer(&v1.WriteFileRequest{Part: &v1.WriteFileRequest_Header{Header: header}}) != nil {
		return nil
	}
	sent := newSum()
	err := copyParts(content, sent, func(data []byte) error {
		return offer(&v1.WriteFileRequest{Part: &v1.WriteFileRequest_Data{Data: data}})
	})
	if refused {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the content to write: %w", err)
	}
	_ = offer(&v1.WriteFileRequest{Part: &v1.WriteFileRequest_Summary{Summary: sent.summary()}}) // the answer says why
	return nil
}

// firstHeader reads the message that says where to write.
func firstHeader(stream *connect.ClientStream[v1.WriteFileRequest]) (*v1.WriteFileHeader, error) {
	if !stream.Receive() && stream.Err() != nil {
		return nil, stream.Err()
	}
	if header := stream.Msg().GetHeader(); header != nil {
		return header, nil
	}
	return nil, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "the first message of a write must be its header").With("field", "header")
}

// upload reads the content of a write. It ends in io.EOF only after a summary
// that fits: that the caller stopped sending is no proof that it sent all, since
// clients that give up close their stream as tidily as those that finish (trap T44).
type upload struct {
	stream *connect.ClientStream[v1.WriteFileRequest]
	sum    *sum
	part   []byte
	ended  bool // the summary came
	err    error
}

// Read reads from the current message, and waits for the next where it is spent.
func (u *upload) Read(p []byte) (int, error) {
	for len(u.part) == 0 && u.err == nil {
		u.part, u.err = u.next()
		u.sum.add(u.part)
	}
	if len(u.part) == 0 {
		return 0, u.err
	}
	n := copy(p, u.part)
	u.part = u.part[n:]
	return n, nil
}

func (u *upload) next() ([]byte, error) {
	if !u.stream.Receive() {
		return nil, u.end()
	}
	if u.ended {
		return nil, outOfOrder("nothing follows the summary of a write")
	}
	switch part := u.stream.Msg().GetPart().(type) {
	case *v1.WriteFileRequest_Data:
		return part.Data, nil
	case *v1.WriteFileRequest_Summary:
		u.ended = true
		if differs := u.sum.differs(part.Summary); differs != "" {
			return nil, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "summary does not fit: %s", differs).With("field", "summary")
		}
		return nil, nil
	}
	return nil, outOfOrder("after the header of a write come data, then the summary")
}

func (u *upload) end() error {
	err := u.stream.Err()
	switch {
	case err == nil && u.ended:
		return io.EOF
	case err == nil:
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "the write ended after %d bytes without its summary", u.sum.bytes).With("field", "summary")
	case connect.CodeOf(err) == connect.CodeInvalidArgument, connect.CodeOf(err) == connect.CodeResourceExhausted:
		return holdfast.E(byWire(connect.CodeOf(err)).code, byWire(connect.CodeOf(err)).reason, "the write has a bad message after %d bytes: %v", u.sum.bytes, err)
	}
	return holdfast.E(holdfast.Cancelled, holdfast.ReasonInterrupted, "the caller went away after %d bytes", u.sum.bytes).Because(errors.Join(io.ErrUnexpectedEOF, err))
}

// explain returns the error of a failed write: what was wrong with its content
// where something was, unless the service knows what became of the file.
func (u *upload) explain(err error) error {
	var e *holdfast.Error
	if u.err == nil || u.err == io.EOF || errors.As(err, &e) && e.Details["written"] != "" { //nolint:errorlint // this reader's own
		return err
	}
	return u.err
}

func outOfOrder(message string) error {
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "%s", message).With("field", "part")
}

// download reads the content of a file from a stream.
type download struct {
	ctx    context.Context // of the call that opened it: whether a break was its caller's wish
	stream *connect.ServerStreamForClient[v1.ReadFileResponse]
	giveUp context.CancelFunc
	sum    *sum
	part   []byte
	err    error
}

func (d *download) info() (holdfast.FileInfo, error) {
	if !d.stream.Receive() {
		if err := d.stream.Err(); err != nil {
			return holdfast.FileInfo{}, fromWire(d.ctx, "ReadFile", err)
		}
		return holdfast.FileInfo{}, interrupted("ReadFile", "the file's info")
	}
	info := d.stream.Msg().GetInfo()
	if info == nil {
		return holdfast.FileInfo{}, interrupted("ReadFile", "the file's info")
	}
	return infoFromWire(info), nil
}

// Read reads from the current message, and waits for the next where it is spent.
func (d *download) Read(p []byte) (int, error) {
	for len(d.part) == 0 && d.err == nil {
		d.part, d.err = d.next()
		d.sum.add(d.part)
	}
	if len(d.part) == 0 {
		return 0, d.err
	}
	n := copy(p, d.part)
	d.part = d.part[n:]
	return n, nil
}

func (d *download) next() ([]byte, error) {
	if !d.stream.Receive() {
		if err := d.stream.Err(); err != nil {
			return nil, fromWire(d.ctx, "ReadFile", err)
		}
		return nil, interrupted("ReadFile", "its summary")
	}
	switch part := d.stream.Msg().GetPart().(type) {
	case *v1.ReadFileResponse_Data:
		return part.Data, nil
	case *v1.ReadFileResponse_Summary:
		if differs := d.sum.differs(part.Summary); differs != "" {
			return nil, holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "ReadFile: %s", differs)
		}
		return nil, io.EOF
	}
	return nil, interrupted("ReadFile", "data where data was due")
}

// Close gives the rest up.
func (d *download) Close() error {
	d.giveUp()
	if err := d.stream.Close(); err != nil && connect.CodeOf(err) != connect.CodeCanceled {
		return fmt.Errorf("close the file's stream: %w", err)
	}
	return nil
}
