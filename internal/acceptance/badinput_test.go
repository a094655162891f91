package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// unknownSandbox has the form of an id, and never was one.
const unknownSandbox = "sb-00000000000000000000000000"

// badCall is a call that cannot succeed, and what it must be told.
type badCall struct {
	name      string
	procedure string
	body      string
	code      string // of Connect
	reason    holdfast.Reason
	says      string // a part of the message: what is wrong, or what to do
}

func create(fields string) string { return `{"requestId":"bad","environment":"base"` + fields + `}` }

func badCalls() []badCall {
	const sandboxes, processes, files = "SandboxService/", "ProcessService/", "FileService/"
	at := `"sandboxId":"` + unknownSandbox + `"`
	return []badCall{
		{"no JSON", sandboxes + "CreateSandbox", `{"requestId":`, "invalid_argument", holdfast.ReasonBadField, ""},
		{"a number for a string", sandboxes + "CreateSandbox", `{"requestId":7}`, "invalid_argument", holdfast.ReasonBadField, ""},
		{"a list for a message", sandboxes + "CreateSandbox", `[]`, "invalid_argument", holdfast.ReasonBadField, ""},
		{"no body", sandboxes + "CreateSandbox", ``, "invalid_argument", holdfast.ReasonBadField, "a JSON object is needed"},
		{"a misspelt field", sandboxes + "CreateSandbox", create(`,"onExpire":"SUSPEND"`), "invalid_argument", holdfast.ReasonBadField, "onExpire"},
		{"a misspelt end of a lifetime", sandboxes + "CreateSandbox", create(`,"onExpiry":"SUSPENDED"`), "invalid_argument", holdfast.ReasonBadField, "SUSPENDED"},
		{"an unknown state", sandboxes + "ListSandboxes", `{"states":["WELL"]}`, "invalid_argument", holdfast.ReasonBadField, "WELL"},
		{"nesting without end", sandboxes + "CreateSandbox", strings.Repeat(`{"labels":`, 100_000), "invalid_argument", holdfast.ReasonBadField, ""},
		{"a string that is not UTF-8", sandboxes + "CreateSandbox", create(`,"name":"` + "\xff" + `"`), "invalid_argument", holdfast.ReasonBadField, ""},

		{"no request id", sandboxes + "CreateSandbox", `{"environment":"base"}`, "invalid_argument", holdfast.ReasonBadField, "request_id is empty"},
		{"a request id of 129", sandboxes + "CreateSandbox", `{"requestId":"` + strings.Repeat("r", 129) + `","environment":"base"}`, "invalid_argument", holdfast.ReasonBadField, "at most 128"},
		{"a request id with a space", sandboxes + "CreateSandbox", `{"requestId":"a b","environment":"base"}`, "invalid_argument", holdfast.ReasonBadField, "visible ASCII"},
		{"a request id with a NUL", sandboxes + "CreateSandbox", `{"requestId":"a\u0000","environment":"base"}`, "invalid_argument", holdfast.ReasonBadField, "visible ASCII"},
		{"no environment", sandboxes + "CreateSandbox", `{"requestId":"bad"}`, "invalid_argument", holdfast.ReasonBadField, `"base" and "debian"`},
		{"a ttl of 0.5 s", sandboxes + "CreateSandbox", create(`,"ttl":"0.5s"`), "invalid_argument", holdfast.ReasonBadField, "ttl is "},
		{"a negative ttl", sandboxes + "CreateSandbox", create(`,"ttl":"-1s"`), "invalid_argument", holdfast.ReasonBadField, "ttl is "},
		{"a ttl of 24 h and a second", sandboxes + "CreateSandbox", create(`,"ttl":"86401s"`), "invalid_argument", holdfast.ReasonBadField, "ttl is "},
		{"a ttl beyond what time can hold", sandboxes + "CreateSandbox", create(`,"ttl":"315576000000s"`), "invalid_argument", holdfast.ReasonBadField, "ttl is "},
		{"an unknown end of a lifetime", sandboxes + "CreateSandbox", create(`,"onExpiry":77`), "invalid_argument", holdfast.ReasonBadField, "DELETE, SUSPEND"},
		{"too little memory", sandboxes + "CreateSandbox", create(`,"resources":{"memoryBytes":"1"}`), "invalid_argument", holdfast.ReasonBadField, "between 16777216"},
		{"a variable without a name", sandboxes + "CreateSandbox", create(`,"env":{"":"x"}`), "invalid_argument", holdfast.ReasonBadField, "names are made of letters"},
		{"too many variables", sandboxes + "CreateSandbox", create(`,"env":{` + many(257) + `}`), "invalid_argument", holdfast.ReasonBadField, "at most 256"},
		{"too many labels", sandboxes + "CreateSandbox", create(`,"labels":{` + many(65) + `}`), "invalid_argument", holdfast.ReasonBadField, "at most 64"},
		{"a page of 1001", sandboxes + "ListSandboxes", `{"pageSize":1001}`, "invalid_argument", holdfast.ReasonBadField, "1000"},
		{"a made-up page token", sandboxes + "ListSandboxes", `{"pageToken":"made-up"}`, "invalid_argument", holdfast.ReasonBadField, "page_token"},

		{"an id of another kind", sandboxes + "GetSandbox", `{"id":"pr-00000000000000000000000000"}`, "invalid_argument", holdfast.ReasonBadField, "sb-"},
		{"an id with a path in it", sandboxes + "GetSandbox", `{"id":"sb-../../../../../../../etc"}`, "invalid_argument", holdfast.ReasonBadField, "id"},
		{"get of an unknown id", sandboxes + "GetSandbox", `{"id":"` + unknownSandbox + `"}`, "not_found", holdfast.ReasonUnknown, unknownSandbox},
		{"suspend of an unknown id", sandboxes + "SuspendSandbox", `{"id":"` + unknownSandbox + `"}`, "not_found", holdfast.ReasonUnknown, unknownSandbox},
		{"resume of an unknown id", sandboxes + "ResumeSandbox", `{"id":"` + unknownSandbox + `"}`, "not_found", holdfast.ReasonUnknown, unknownSandbox},
		{"delete of an unknown id", sandboxes + "DeleteSandbox", `{"id":"` + unknownSandbox + `"}`, "not_found", holdfast.ReasonUnknown, unknownSandbox},
		{"a negative condition", sandboxes + "DeleteSandbox", `{"id":"` + unknownSandbox + `","ifGeneration":"-1"}`, "invalid_argument", holdfast.ReasonBadField, "if_generation"},
		{"a made-up token of operations", "OperationService/ListOperations", `{"resource":"` + unknownSandbox + `","pageToken":"sb-1"}`, "invalid_argument", holdfast.ReasonBadField, "page_token"},
		{"operations of an unknown id", "OperationService/ListOperations", `{"resource":"` + unknownSandbox + `"}`, "not_found", holdfast.ReasonUnknown, unknownSandbox},
		{"an unknown operation", "OperationService/GetOperation", `{"id":"op-00000000000000000000000000"}`, "not_found", holdfast.ReasonUnknown, "op-"},

		{"a start in an unknown sandbox", processes + "StartProcess", `{` + at + `,"command":"true"}`, "not_found", holdfast.ReasonUnknown, unknownSandbox},
		{"a start of nothing", processes + "StartProcess", `{` + at + `}`, "invalid_argument", holdfast.ReasonBadField, "command"},
		{"a start in a relative directory", processes + "StartProcess", `{` + at + `,"command":"true","cwd":"tmp"}`, "invalid_argument", holdfast.ReasonBadField, "absolute"},
		{"a terminal without columns", processes + "StartProcess", `{` + at + `,"command":"true","terminal":{"rows":5}}`, "invalid_argument", holdfast.ReasonBadField, "terminal"},
		{"a terminal that is too wide", processes + "StartProcess", `{` + at + `,"command":"true","terminal":{"rows":5,"columns":65536}}`, "invalid_argument", holdfast.ReasonBadField, "65535"},
		{"an unknown process", processes + "GetProcess", `{` + at + `,"processId":"pr-00000000000000000000000000"}`, "not_found", holdfast.ReasonUnknown, ""},
		{"a path of 5000", files + "StatFile", `{` + at + `,"path":"/` + strings.Repeat("p/", 2500) + `"}`, "invalid_argument", holdfast.ReasonBadField, "at most 4095"},
		{"a name of 5000", files + "StatFile", `{` + at + `,"path":"/` + strings.Repeat("p", 4090) + `"}`, "invalid_argument", holdfast.ReasonBadField, "at most 255"},
		{"a relative path", files + "StatFile", `{` + at + `,"path":"etc/passwd"}`, "invalid_argument", holdfast.ReasonBadField, "absolute"},
		{"a path with a NUL", files + "StatFile", `{` + at + `,"path":"/etc\u0000/passwd"}`, "invalid_argument", holdfast.ReasonBadField, "NUL"},
		{"a file in an unknown sandbox", files + "StatFile", `{` + at + `,"path":"/etc"}`, "not_found", holdfast.ReasonUnknown, unknownSandbox},
	}
}

// many is n entries of a JSON object.
func many(n int) string {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = fmt.Sprintf(`"K%d":"v"`, i)
	}
	return strings.Join(entries, ",")
}

// contract: A8, T7: bad input gets a clear code, a reason and a message that says
// what to correct, and nothing is recorded: not even the request id is taken.
func TestT7_BadInputIsRefusedClearlyAndNothingIsRecorded(t *testing.T) {
	s := serve(t)
	for _, c := range badCalls() {
		a := s.post(c.procedure, c.body)
		if a.Code != c.code || a.reason() != c.reason || a.Message == "" || !strings.Contains(a.Message, c.says) {
			t.Errorf("%s: got %d %s %s %q, want %s %s %q", c.name, a.Status, a.Code, a.reason(), a.Message, c.code, c.reason, c.says)
		}
	}
	s.wantNothingRecorded()
	// The request id that all of them used is as free as before.
	s.create("bad")
}

func (s *system) wantNothingRecorded() {
	s.t.Helper()
	page, err := s.client.ListSandboxes(s.t.Context(), holdfast.ListSandboxes{})
	if err != nil || len(page.Sandboxes) != 0 {
		s.t.Errorf("bad input left %+v, %v", page.Sandboxes, err)
	}
	if n := s.containers(); n != 0 {
		s.t.Errorf("bad input left %d containers", n)
	}
}

// contract: A8: a message over 4 MiB, a body of 100 MB, a body that says that it
// is something else, and a wrong verb are refused before anything is recorded,
// and the server's memory does not grow with what it refuses.
func TestBadInput_OversizedAndMalformedBodiesAreRefused(t *testing.T) {
	s := serve(t)
	key := "Bearer " + s.Key()
	const procedure = "/holdfast.v1.SandboxService/CreateSandbox"
	before := s.memory("VmRSS")
	for name, size := range map[string]int64{"5 MiB": 5 << 20, "100 MB": 100e6} {
		a := s.plain(http.MethodPost, procedure, key, nil, zeros(size))
		if a.Code != "resource_exhausted" || a.reason() != holdfast.ReasonTooLarge || !strings.Contains(a.Message, "4194304") {
			t.Errorf("%s: %d %s %s %q", name, a.Status, a.Code, a.reason(), a.Message)
		}
	}
	if grew := s.memory("VmHWM") - before; grew > 64<<20 {
		t.Errorf("refusing large bodies took %d MiB", grew>>20)
	}
	for _, c := range []struct {
		name, method, path, content, encoding string
		status                                int
	}{
		{"no content type", http.MethodPost, procedure, "", "", http.StatusUnsupportedMediaType},
		{"a form", http.MethodPost, procedure, "application/x-www-form-urlencoded", "", http.StatusUnsupportedMediaType},
		{"XML", http.MethodPost, procedure, "text/xml", "", http.StatusUnsupportedMediaType},
		{"GET of a mutation", http.MethodGet, procedure, "", "", http.StatusMethodNotAllowed},
		{"PUT", http.MethodPut, procedure, "application/json", "", http.StatusMethodNotAllowed},
		{"an unknown method", http.MethodPost, "/holdfast.v1.SandboxService/ExplodeSandbox", "application/json", "", http.StatusNotFound},
		{"an unknown service", http.MethodPost, "/holdfast.v9.SandboxService/CreateSandbox", "application/json", "", http.StatusNotFound},
		{"a path outside", http.MethodGet, "/../../etc/passwd", "", "", http.StatusNotFound},
		{"bytes that are no gzip", http.MethodPost, procedure, "application/json", "gzip", http.StatusBadRequest},
		{"an unknown encoding", http.MethodPost, procedure, "application/json", "rot13", http.StatusNotImplemented},
		{"bytes that are no protobuf", http.MethodPost, procedure, "application/proto", "", http.StatusBadRequest},
	} {
		header := http.Header{"Content-Type": {c.content}}
		if c.encoding != "" {
			header.Set("Content-Encoding", c.encoding)
		}
		if a := s.plain(c.method, c.path, key, header, strings.NewReader(create(""))); a.Status != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, a.Status, a.Body, c.status)
		}
	}
	s.wantNothingRecorded()
}

// contract: A8: a missing or wrong key is UNAUTHENTICATED, says where the right
// one is, and is refused before the body is looked at (T7).
func TestT7_WithoutAValidKeyNothingIsRead(t *testing.T) {
	s := serve(t)
	for name, header := range map[string]string{
		"no key": "", "a wrong key": "Bearer hf_wrong", "another scheme": "Basic aGY6aGY=", "an empty key": "Bearer ",
		"a key that is cut": "Bearer " + s.Key()[:len(s.Key())-1], "a key and more": "Bearer " + s.Key() + "x",
		"a huge key": "Bearer " + strings.Repeat("k", 100_000), "the key bare": s.Key(),
	} {
		for _, procedure := range []string{"SandboxService/CreateSandbox", "ProcessService/StartProcess", "FileService/StatFile", "OperationService/GetOperation"} {
			a := s.plain(http.MethodPost, "/holdfast.v1."+procedure, header, nil, strings.NewReader(create("")))
			if a.Status != http.StatusUnauthorized || a.Code != "unauthenticated" || a.reason() != holdfast.ReasonCredentials || !strings.Contains(a.Message, "key") {
				t.Errorf("%s, %s: %d %s", name, procedure, a.Status, a.Body)
			}
		}
	}
	s.wantNothingRecorded()
}

// contract: A8: an environment that does not exist is refused, with what there is,
// and nothing is recorded.
func TestBadInput_AnUnknownEnvironmentSaysWhatThereIs(t *testing.T) {
	s := serve(t)
	for i, name := range []string{"no-such-environment", "debian:no-such-suite/..", "../../../etc", "https://example.invalid/x"} {
		_, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: fmt.Sprint("env-", i), Environment: name})
		wantCode(t, name, err, holdfast.InvalidArgument, holdfast.ReasonNoSuchImage)
		if !strings.Contains(fmt.Sprint(err), `"base", "debian"`) {
			t.Errorf("%s: the error does not say what there is: %v", name, err)
		}
	}
	s.wantNothingRecorded()
}

// badFile is a call about a file that cannot succeed.
type badFile struct {
	name   string
	call   func(context.Context, *client.Client, holdfast.SandboxID) error
	code   holdfast.Code
	reason holdfast.Reason
}

func readFile(path string) func(context.Context, *client.Client, holdfast.SandboxID) error {
	return func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
		_, err := c.Download(ctx, id, holdfast.ReadFile{Path: path}, io.Discard)
		return err
	}
}

func writeFile(in holdfast.WriteFile) func(context.Context, *client.Client, holdfast.SandboxID) error {
	return func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
		_, err := c.Upload(ctx, id, in, strings.NewReader("new"))
		return err
	}
}

func listPath(path string) func(context.Context, *client.Client, holdfast.SandboxID) error {
	return func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
		_, err := c.ListDirectory(ctx, id, path)
		return err
	}
}

func makePath(path string, mode uint32) func(context.Context, *client.Client, holdfast.SandboxID) error {
	return func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
		_, err := c.MakeDirectory(ctx, id, path, mode)
		return err
	}
}

func movePath(from, to string) func(context.Context, *client.Client, holdfast.SandboxID) error {
	return func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
		_, err := c.MoveFile(ctx, id, from, to)
		return err
	}
}

func removePath(path string, recursive bool) func(context.Context, *client.Client, holdfast.SandboxID) error {
	return func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
		return c.RemoveFile(ctx, id, path, recursive)
	}
}

func watchPath(path string) func(context.Context, *client.Client, holdfast.SandboxID) error {
	return func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
		return c.WatchDirectory(ctx, id, holdfast.WatchDirectory{Path: path}, func(holdfast.FileEvent) error { return nil })
	}
}

// filesToMistake are made before badFiles are tried.
const filesToMistake = `mkdir -p /t/full/sub && cd /t && echo old > file && mkfifo pipe && ln -s loop1 loop2 && ln -s loop2 loop1 &&
	ln -s nowhere/at/all dangling && ` + probe + ` socket /t/socket && ls -l`

func badFiles() []badFile {
	const (
		bad, missing, state, exists = holdfast.InvalidArgument, holdfast.NotFound, holdfast.FailedPrecondition, holdfast.AlreadyExists
		field, notFile, notDir      = holdfast.ReasonBadField, holdfast.ReasonNotAFile, holdfast.ReasonNotADirectory
		noFile                      = holdfast.ReasonNoSuchFile
	)
	var cases []badFile
	for _, path := range []string{"/t", "/", "/dev/zero", "/dev/full", "/dev/ptmx", "/t/pipe", "/t/socket"} {
		cases = append(cases,
			badFile{"read " + path, readFile(path), state, notFile},
			badFile{"write " + path, writeFile(holdfast.WriteFile{Path: path}), state, notFile},
			badFile{"append to " + path, writeFile(holdfast.WriteFile{Path: path, Append: true}), state, notFile})
	}
	for name, call := range map[string]func(string) func(context.Context, *client.Client, holdfast.SandboxID) error{
		"read": readFile, "list": listPath, "watch": watchPath,
		"write": func(path string) func(context.Context, *client.Client, holdfast.SandboxID) error {
			return writeFile(holdfast.WriteFile{Path: path})
		},
	} {
		cases = append(cases,
			badFile{name + " in a missing parent", call("/t/no/such"), missing, noFile},
			badFile{name + " below a file", call("/t/file/below"), state, notDir},
			badFile{name + " by a loop of links", call("/t/loop1"), state, holdfast.ReasonState},
			badFile{name + " of a relative path", call("t/file"), bad, field},
			badFile{name + " of a path with a NUL", call("/t/\x00file"), bad, field},
			badFile{name + " of a path that is not UTF-8", call("/t/\xff"), bad, field},
			badFile{name + " of 5000 characters", call("/" + strings.Repeat("p", 5000)), bad, field},
			badFile{name + " of a name of 256", call("/t/" + strings.Repeat("p", 256)), bad, field})
	}
	return append(cases, []badFile{
		{"read what a dangling link names", readFile("/t/dangling"), missing, noFile},
		{"read beyond the end", func(ctx context.Context, c *client.Client, id holdfast.SandboxID) error {
			_, err := c.Download(ctx, id, holdfast.ReadFile{Path: "/t/file", Offset: 5}, io.Discard)
			return err
		}, holdfast.OutOfRange, field},
		{"write what no one can", writeFile(holdfast.WriteFile{Path: "/proc/sys/kernel/hostname", Append: true}), state, holdfast.ReasonState},
		{"write with parents below a file", writeFile(holdfast.WriteFile{Path: "/t/file/a/b", CreateParents: true}), state, notDir},
		{"list a file", listPath("/t/file"), state, notDir},
		{"list a pipe", listPath("/t/pipe"), state, notDir},
		{"watch a file", watchPath("/t/file"), state, notDir},
		{"make a directory where a file is", makePath("/t/file", 0), state, notDir},
		{"make a directory with a mode that is none", makePath("/t/d", 0o10000), bad, field},
		{"move what is missing", movePath("/t/no", "/t/yes"), missing, noFile},
		{"move onto something", movePath("/t/pipe", "/t/file"), exists, holdfast.ReasonFileExists},
		{"move into itself", movePath("/t/full", "/t/full/sub/more"), bad, field},
		{"move to another file system", movePath("/t/file", "/dev/shm/file"), state, holdfast.ReasonState},
		{"remove what is missing", removePath("/t/no", true), missing, noFile},
		{"remove a directory that is full", removePath("/t/full", false), state, holdfast.ReasonNotEmpty},
		{"remove the root", removePath("/t/../..", true), bad, field},
		{"remove a mount point", removePath("/run/holdfast/spool/console", false), state, holdfast.ReasonState},
	}...)
}

// contract: A14: a call about a file that is none, that is elsewhere, that is too
// long, or that would wait or act when it is opened, gets a clear answer at once,
// and changes nothing.
func TestBadInput_FileCallsAreRefusedClearly(t *testing.T) {
	s := serve(t)
	sb := s.withProbe(s.create("r1"))
	if out, errs, code := s.sh(sb.ID, filesToMistake); code != 0 {
		t.Fatalf("%s %s", out, errs)
	}
	listing, _, _ := s.sh(sb.ID, "find /t | sort; cat /t/file")
	for _, c := range badFiles() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := c.call(ctx, s.client, sb.ID)
		cancel()
		wantCode(t, c.name, err, c.code, c.reason)
		if len(fmt.Sprint(err)) > 1000 {
			t.Errorf("%s: a message of %d characters", c.name, len(fmt.Sprint(err)))
		}
	}
	if after, _, _ := s.sh(sb.ID, "find /t | sort; cat /t/file"); after != listing {
		t.Errorf("refused calls changed something:\n%s\nwas\n%s", after, listing)
	}
	// The longest name there is can be written.
	long := "/t/" + strings.Repeat("n", holdfast.MaxPathName)
	if written, err := s.client.Upload(t.Context(), sb.ID, holdfast.WriteFile{Path: long}, strings.NewReader("x")); err != nil || written.Info.Path != long {
		t.Errorf("a name of 255: %+v %v", written, err)
	}
}

// contract: A14: paths are the sandbox's own, whatever its links look like: a
// file of the host is neither read nor written nor removed.
func TestBadInput_NoPathLeadsToTheHost(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	host := filepath.Join(t.TempDir(), "marker")
	if err := os.WriteFile(host, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	script := "mkdir -p /t; echo of the guest > /etc/shadow; ln -s /etc/shadow /t/shadow; ln -s ../../../../../../../../etc/shadow /t/dots; " +
		"ln -s " + host + " /t/host; ln -s " + filepath.Dir(host) + " /t/dir; ln -s /proc/1/root /t/top; ln -s /proc/self/cwd /t/cwd; echo passwd > /etc/passwd"
	if _, errs, code := s.sh(sb.ID, script); code != 0 {
		t.Fatal(errs)
	}
	for _, path := range []string{"/etc/shadow", "/t/shadow", "/t/dots", "/../../../../etc/shadow", "/t/../../etc/shadow", "/t/top/etc/shadow", "/t/top/../../../etc/shadow", "/t/cwd/../../etc/shadow"} {
		var got bytes.Buffer
		if _, err := s.client.Download(t.Context(), sb.ID, holdfast.ReadFile{Path: path}, &got); err != nil || got.String() != "of the guest\n" {
			t.Errorf("%s: %q %v", path, got.String(), err)
		}
	}
	for _, path := range []string{host, "/t/host", "/t/dir/marker", "/t/top" + host} {
		wantCode(t, "read "+path, readFile(path)(t.Context(), s.client, sb.ID), holdfast.NotFound, holdfast.ReasonNoSuchFile)
		wantCode(t, "append to "+path, writeFile(holdfast.WriteFile{Path: path, Append: true})(t.Context(), s.client, sb.ID), holdfast.NotFound, holdfast.ReasonNoSuchFile)
	}
	if _, err := s.client.Upload(t.Context(), sb.ID, holdfast.WriteFile{Path: "/t/top/etc/passwd"}, strings.NewReader("by the API")); err != nil {
		t.Error(err)
	}
	s.wantOutput(sb.ID, "cat /etc/passwd", "by the API")
	if err := s.client.RemoveFile(t.Context(), sb.ID, "/t", true); err != nil { // the links, not where they lead
		t.Error(err)
	}
	s.wantOutput(sb.ID, "cat /etc/shadow", "of the guest")
	if raw, err := os.ReadFile(host); err != nil || string(raw) != "of the host" {
		t.Errorf("a file of the host is now %q, %v", raw, err)
	}
	if raw, err := os.ReadFile("/etc/passwd"); err != nil || !bytes.Equal(raw, passwd) {
		t.Errorf("the host's /etc/passwd changed, %v", err)
	}
}

// contract: A14: a command that cannot be executed says why, and is no process.
func TestBadInput_CommandsThatCannotRunSayWhy(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	setup := "mkdir /t && cd /t && echo data > plain && printf '#!/no/such/shell\n' > bad && printf '\\177ELF' > elf && printf '%s' '' > empty && chmod +x bad elf empty && ln -s loop loop"
	if _, errs, code := s.sh(sb.ID, setup); code != 0 {
		t.Fatal(errs)
	}
	started, err := s.client.ListProcesses(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", holdfast.MaxArg+1)
	const state, none, bad, field = holdfast.FailedPrecondition, holdfast.ReasonNoSuchCommand, holdfast.InvalidArgument, holdfast.ReasonBadField
	for _, c := range []struct {
		name   string
		in     holdfast.StartProcess
		code   holdfast.Code
		reason holdfast.Reason
		says   string
	}{
		{"no such command", holdfast.StartProcess{Command: "no-such-command"}, state, none, "not found"},
		{"no such path", holdfast.StartProcess{Command: "/no/such/command"}, state, none, "not found"},
		{"a directory", holdfast.StartProcess{Command: "/t"}, state, none, "is a directory"},
		{"a file that is not executable", holdfast.StartProcess{Command: "/t/plain"}, state, none, "chmod +x"},
		{"below a file", holdfast.StartProcess{Command: "/t/plain/x"}, state, none, "cannot be executed"},
		{"a loop", holdfast.StartProcess{Command: "/t/loop"}, state, none, "cannot be executed"},
		{"no interpreter", holdfast.StartProcess{Command: "/t/bad"}, state, none, "interpreter"},
		{"no program", holdfast.StartProcess{Command: "/t/elf"}, state, none, "cannot be executed"},
		{"an empty file", holdfast.StartProcess{Command: "/t/empty"}, state, none, "cannot be executed"},
		{"a device", holdfast.StartProcess{Command: "/dev/zero"}, state, none, "not executable"},
		{"a PATH without it", holdfast.StartProcess{Command: "sh", Env: map[string]string{"PATH": "/t"}}, state, none, "PATH=/t"},
		{"no such directory", holdfast.StartProcess{Command: "true", Cwd: "/no/such"}, state, none, "working directory"},
		{"a file for a directory", holdfast.StartProcess{Command: "true", Cwd: "/t/plain"}, state, none, "not a directory"},
		{"a relative directory", holdfast.StartProcess{Command: "true", Cwd: "t"}, bad, field, "absolute"},
		{"an argument that is too long", holdfast.StartProcess{Command: "true", Args: []string{long}}, bad, field, "at most 131071"},
		{"too many arguments", holdfast.StartProcess{Command: "true", Args: make([]string, holdfast.MaxArgs+1)}, bad, field, "at most 4096"},
		{"arguments of over 1 MiB", holdfast.StartProcess{Command: "true", Args: slices.Repeat([]string{long[1:]}, 9)}, bad, field, "at most 1048576"},
		{"an argument with a NUL", holdfast.StartProcess{Command: "true", Args: []string{"a\x00b"}}, bad, field, "NUL"},
		{"a variable with =", holdfast.StartProcess{Command: "true", Env: map[string]string{"A=B": "c"}}, bad, field, "names are made of"},
	} {
		_, err := s.client.StartProcess(t.Context(), sb.ID, c.in)
		wantCode(t, c.name, err, c.code, c.reason)
		if !strings.Contains(fmt.Sprint(err), c.says) || len(fmt.Sprint(err)) > 1000 {
			t.Errorf("%s: the message %.1000q has no %q", c.name, fmt.Sprint(err), c.says)
		}
	}
	after, err := s.client.ListProcesses(t.Context(), sb.ID)
	if err != nil || len(after) != len(started) {
		t.Errorf("commands that could not run are %d processes, %v", len(after)-len(started), err)
	}
	// What just fits, runs.
	out, errs, code := s.sh(sb.ID, "echo "+strings.Repeat("x", 100_000)+" | wc -c")
	if strings.TrimSpace(out) != "100001" || code != 0 {
		t.Errorf("a long argument: %q %q %d", out, errs, code)
	}
	err = s.client.SignalProcess(t.Context(), sb.ID, started[0].ID, "NOSUCH")
	wantCode(t, "a signal that is none", err, bad, field)
	err = s.client.SignalProcess(t.Context(), sb.ID, started[0].ID, "TERM")
	wantCode(t, "a signal to what has ended", err, state, holdfast.ReasonEnded)
}
