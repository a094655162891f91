package transport_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/transport"
)

// network gives a network and a client of it; at the test's end no handler may run.
func network(t *testing.T) (*transport.Network, *http.Client) {
	t.Helper()
	n := &transport.Network{Log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return n, &http.Client{Transport: n.RoundTripper()}
}

func post(t *testing.T, ctx context.Context, c *http.Client, url string, body io.Reader) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(req)
}

func TestRequestAndResponseArriveWhole(t *testing.T) {
	n, c := network(t)
	n.Handle("fleet", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Saw", r.Method+" "+r.URL.String()+" "+r.Host+" "+r.Header.Get("X-Sent"))
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("X-Late", "no")
		_, _ = w.Write(bytes.ToUpper(body))
	}))
	big := strings.Repeat("abcdefgh", 100_000)
	for _, body := range []string{"", "x", big} {
		req, err := http.NewRequest(http.MethodPut, "http://fleet/a%2Fb?q=1", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Sent", "yes")
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		if err != nil || res.Body.Close() != nil || string(got) != strings.ToUpper(body) {
			t.Errorf("body of %d bytes came back as %d, error %v", len(body), len(got), err)
		}
		if res.StatusCode != http.StatusTeapot || res.Header.Get("X-Saw") != "PUT /a%2Fb?q=1 fleet yes" || res.Header.Get("X-Late") != "" {
			t.Errorf("answer %d %v", res.StatusCode, res.Header)
		}
		if len(body) < 4096 && res.ContentLength != int64(len(body)) {
			t.Errorf("ContentLength %d for %d bytes", res.ContentLength, len(body))
		}
	}
}

func TestUnknownHostIsADialError(t *testing.T) {
	n, c := network(t)
	n.Handle("known", http.NotFoundHandler())
	n.Remove("known")
	for _, host := range []string{"nowhere", "known"} {
		_, err := c.Get("http://" + host + "/")
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestBothDirectionsStreamAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c := network(t)
		n.Handle("guest", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			flusher := http.NewResponseController(w)
			if err := errors.Join(flusher.EnableFullDuplex(), flusher.Flush()); err != nil {
				t.Error(err)
			}
			lines := bufio.NewScanner(r.Body)
			for lines.Scan() {
				_, _ = io.WriteString(w, "echo "+lines.Text()+"\n")
				_ = flusher.Flush()
			}
		}))
		body, input := io.Pipe()
		res, err := post(t, t.Context(), c, "http://guest/", body)
		if err != nil {
			t.Fatal(err)
		}
		output := bufio.NewReader(res.Body)
		for _, word := range []string{"one", "two", "three"} {
			_, _ = io.WriteString(input, word+"\n")
			if got, err := output.ReadString('\n'); err != nil || got != "echo "+word+"\n" {
				t.Fatalf("got %q, %v", got, err)
			}
		}
		_ = input.Close()
		if rest, err := io.ReadAll(output); err != nil || len(rest) > 0 {
			t.Fatalf("rest %q, %v", rest, err)
		}
		_ = res.Body.Close()
	})
}

func TestTrailersArriveWithTheEnd(t *testing.T) {
	n, c := network(t)
	n.Handle("h", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Declared")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("Declared", "a")
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", r.Trailer.Get("From-Client"))
	}))
	req, err := http.NewRequest(http.MethodPost, "http://h/", io.NopCloser(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"From-Client": {"7"}}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(res.Body); err != nil || string(got) != "body" {
		t.Fatalf("%q, %v", got, err)
	}
	if res.Trailer.Get("Declared") != "a" || res.Trailer.Get("Grpc-Status") != "7" || res.Header.Get("Declared") != "" {
		t.Errorf("trailers %v, header %v", res.Trailer, res.Header)
	}
}

func TestClientGoingAwayCancelsTheHandler(t *testing.T) {
	leave := map[string]func(context.CancelFunc, *http.Response){
		"its context ends":    func(cancel context.CancelFunc, _ *http.Response) { cancel() },
		"it closes the body":  func(_ context.CancelFunc, res *http.Response) { _ = res.Body.Close() },
		"its body never ends": nil,
	}
	for name, act := range leave {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, c := network(t)
				ended := make(chan error, 1)
				n.Handle("h", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if act != nil {
						_ = http.NewResponseController(w).Flush()
					}
					_, err := io.ReadAll(r.Body)
					<-r.Context().Done()
					ended <- err
				}))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				body, _ := io.Pipe()
				res, err := post(t, ctx, c, "http://h/", body)
				if act == nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("the client got %v", err)
					}
				} else {
					if err != nil {
						t.Fatal(err)
					}
					act(cancel, res)
				}
				if err := <-ended; err == nil {
					t.Error("the handler saw the whole of a body that never ended")
				}
			})
		})
	}
}

func TestHandlerContextCarriesNoValuesAcross(t *testing.T) {
	n, c := network(t)
	type key struct{}
	n.Handle("h", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Context().Value(key{}) != nil {
			t.Error("a value crossed the network")
		}
	}))
	res, err := post(t, context.WithValue(t.Context(), key{}, 1), c, "http://h/", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
}

func TestPanicBreaksTheConnection(t *testing.T) {
	n, c := network(t)
	c.Timeout = 10 * time.Second // on failure alone
	for _, flushed := range []bool{false, true} {
		n.Handle("h", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			if flushed {
				w.(http.Flusher).Flush()
			}
			panic("handler")
		}))
		res, err := c.Get("http://h/")
		if err == nil && flushed {
			_, err = io.ReadAll(res.Body)
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("flushed %v: %v", flushed, err)
		}
	}
}

func TestRemoveBreaksRequestsInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c := network(t)
		n.Handle("h", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		go func() {
			synctest.Wait()
			n.Remove("h")
		}()
		if _, err := c.Get("http://h/"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client got %v", err)
		}
	})
}

func TestSmallAnswerIsUndisturbedByAClientThatDoesNotReadIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c := network(t)
		n.Handle("h", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, "words")
			time.Sleep(time.Second) // virtual: the answer leaves at the handler's end
			if r.Context().Err() != nil {
				t.Error("cancelled before the end")
			}
		}))
		start := time.Now()
		res, err := c.Get("http://h/")
		if err != nil || res.StatusCode != http.StatusAccepted {
			t.Fatal(res, err)
		}
		if time.Since(start) != time.Second {
			t.Errorf("answered after %v", time.Since(start))
		}
		_ = res.Body.Close()
	})
}

func TestHandlerMayAnswerWithoutReadingTheBody(t *testing.T) {
	for name, closes := range map[string]bool{"it leaves it": false, "it closes it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, c := network(t)
				n.Handle("h", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if closes {
						_ = r.Body.Close()
					}
					time.Sleep(time.Second) // virtual: the client has sent what it can
					http.Error(w, "no", http.StatusForbidden)
				}))
				res, err := post(t, t.Context(), c, "http://h/", bytes.NewReader(make([]byte, 1<<20)))
				if err != nil || res.StatusCode != http.StatusForbidden {
					t.Fatal(err)
				}
				if text, err := io.ReadAll(res.Body); err != nil || string(text) != "no\n" {
					t.Fatalf("%q, %v", text, err)
				}
				_ = res.Body.Close()
			})
		})
	}
}

func TestLengthsAreHeldTo(t *testing.T) {
	n, c := network(t)
	n.Handle("short", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "1234")
	}))
	n.Handle("reads", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("a body of the wrong length was read to its end")
		}
	}))
	res, err := c.Get("http://short/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a short answer ended with %v", err)
	}
	for _, announced := range []int64{3, 5} {
		req, err := http.NewRequest(http.MethodPost, "http://reads/", io.NopCloser(strings.NewReader("1234")))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = announced
		if _, err := c.Do(req); err == nil {
			t.Errorf("4 bytes announced as %d were accepted", announced)
		}
	}
}

func TestHeadAndNoContentHaveNoBody(t *testing.T) {
	n, c := network(t)
	n.Handle("h", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body after 204: %v", err)
			}
			return
		}
		_, _ = io.WriteString(w, "hello")
	}))
	for method, length := range map[string]int64{http.MethodHead: 5, http.MethodDelete: 0} {
		req, err := http.NewRequest(method, "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); err != nil || len(body) > 0 || res.ContentLength != length {
			t.Errorf("%s: %q, %v, length %d", method, body, err, res.ContentLength)
		}
	}
}
