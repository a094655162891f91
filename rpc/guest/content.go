package guest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-dev/holdfast"
)

// The content of a file travels as parts: a kind, a length of four bytes (big
// endian), and that many bytes. First a header, then data, then an end or a
// failure. Without either it was cut.
const (
	partHeader  = 'h' // JSON: what is written, or read
	partData    = 'd'
	partEnd     = 'e' // JSON: contentEnd
	partFailure = 'x' // JSON: holdfast.Error

	maxData = 128 << 10 // bytes in one part of data
	maxJSON = 64 << 10  // bytes in one of the others
)

type contentEnd struct {
	Bytes int64 `json:"bytes"` // of data before it
}

func writePart(w io.Writer, kind byte, payload []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(payload)
	return err
}

func writeJSON(w io.Writer, kind byte, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writePart(w, kind, raw)
}

// writeContent sends header and content. It returns an error of w, which means
// that nobody reads, apart from one of content, which the other side is told.
func writeContent(w io.Writer, header any, content io.Reader) (contentErr, err error) {
	if err := writeJSON(w, partHeader, header); err != nil {
		return nil, err
	}
	buffer := make([]byte, maxData)
	var sent int64
	for {
		// Not io.ReadFull: its ErrUnexpectedEOF could not be told from content's own.
		n, readErr := content.Read(buffer)
		if n > 0 {
			if err := writePart(w, partData, buffer[:n]); err != nil {
				return nil, err
			}
			sent += int64(n)
		}
		switch {
		case readErr == nil:
		case readErr == io.EOF: // and nothing that wraps it
			return nil, writeJSON(w, partEnd, contentEnd{Bytes: sent})
		default:
			e := wireError(readErr)
			if e.Code == holdfast.Internal {
				e = holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "the content broke off: %v", readErr)
			}
			return readErr, writeJSON(w, partFailure, e)
		}
	}
}

// contentReader reads data parts, and ends with io.EOF only after a right end.
type contentReader struct {
	from io.Reader
	left int64 // of the current part
	seen int64
	err  error // for ever
}

func (c *contentReader) Read(p []byte) (int, error) {
	for c.left == 0 && c.err == nil {
		c.err = c.next()
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.from.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	c.seen += int64(n)
	if err != nil && (c.left > 0 || !errors.Is(err, io.EOF)) {
		c.err = cut(err)
	}
	if n > 0 {
		return n, nil
	}
	return 0, c.err
}

// next reads the head of a part, and the part unless it is data.
func (c *contentReader) next() error {
	kind, length, err := readHead(c.from)
	if err != nil {
		return cut(err)
	}
	switch kind {
	case partData:
		if length > maxData {
			return cut(fmt.Errorf("a part of %d bytes", length))
		}
		c.left = int64(length)
		return nil
	case partEnd:
		var end contentEnd
		if err := readJSON(c.from, length, &end); err != nil {
			return cut(err)
		}
		if end.Bytes != c.seen {
			return cut(fmt.Errorf("it had %d bytes, and %d arrived", end.Bytes, c.seen))
		}
		return io.EOF
	case partFailure:
		e := new(holdfast.Error)
		if err := readJSON(c.from, length, e); err != nil {
			return cut(err)
		}
		return e
	}
	return cut(fmt.Errorf("a part of kind %q", kind))
}

func readHead(from io.Reader) (kind byte, length uint32, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, 0, err
	}
	return head[0], binary.BigEndian.Uint32(head[1:]), nil
}

func readJSON(from io.Reader, length uint32, value any) error {
	if length > maxJSON {
		return fmt.Errorf("a part of %d bytes", length)
	}
	raw := make([]byte, length)
	if _, err := io.ReadFull(from, raw); err != nil {
		return err
	}
	return json.Unmarshal(raw, value)
}

// readHeader reads the first part.
func readHeader(from io.Reader, header any) error {
	kind, length, err := readHead(from)
	if err == nil && kind != partHeader {
		err = fmt.Errorf("a part of kind %q where the header is", kind)
	}
	if err == nil {
		err = readJSON(from, length, header)
	}
	if err != nil {
		return cut(err)
	}
	return nil
}

// cut is content without its end.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonInterrupted, "the content broke off").Because(err)
}
