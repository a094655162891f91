// Package probe is the guest that the conformance suite boots: it answers one
// line per request on its listener, as a real process under a real runtime and
// as a goroutine under the simulated one.
package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Probe is one boot of the guest.
type Probe struct {
	Nonce string // differs between boots: who answers with the same one is the same boot
	HTTP  *http.Client
	Exit  func()       // ends the instance
	Print func(string) // writes to the console
	Try   func(request string) string
	Root  string // of the files that it writes and reads; "": "/"
}

// Serve answers until the listener closes.
func (p Probe) Serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go p.answer(conn)
	}
}

func (p Probe) answer(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the other side sees what it got
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if _, err := fmt.Fprintln(conn, p.do(lines.Text())); err != nil {
			return
		}
	}
}

func (p Probe) do(request string) string {
	verb, rest, _ := strings.Cut(request, " ")
	switch verb {
	case "nonce":
		return p.Nonce
	case "exit":
		p.Exit()
		return "exiting"
	case "print":
		p.Print(rest)
		return "printed"
	case "get":
		return p.get(rest)
	case "dial":
		return dial(rest)
	case "write", "read", "remove":
		return p.file(verb, rest)
	}
	if p.Try != nil {
		return p.Try(request)
	}
	return "unknown request"
}

// file does one thing with a file: its content has no line ends, and its directory
// is made.
func (p Probe) file(verb, rest string) string {
	name, content, _ := strings.Cut(rest, " ")
	path := filepath.Join("/", p.Root, name)
	var err error
	switch verb {
	case "write":
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
	case "read":
		var data []byte
		if data, err = os.ReadFile(path); err == nil {
			return "content " + string(data)
		}
	case "remove":
		err = os.RemoveAll(path)
	}
	if err != nil {
		return "error " + err.Error()
	}
	return "done"
}

func (p Probe) get(url string) string {
	response, err := p.HTTP.Get(url)
	if err != nil {
		return "error " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	if err := response.Body.Close(); err != nil {
		return "error " + err.Error()
	}
	return response.Status
}

func dial(address string) string {
	conn, err := net.DialTimeout("tcp", address, 700*time.Millisecond)
	if err != nil {
		return "error " + err.Error()
	}
	if err := conn.Close(); err != nil {
		return "error " + err.Error()
	}
	return "open"
}

// Dialer is what Ask reaches the guest by.
type Dialer func(ctx context.Context) (net.Conn, error)

// Ask sends one request and returns the answer.
func Ask(ctx context.Context, connect Dialer, request string) (answer string, err error) {
	conn, err := connect(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := fmt.Fprintln(conn, request); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}
