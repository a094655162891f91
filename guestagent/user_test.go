package guestagent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast"
)

// contract: E1
func TestE1_AProcessRunsAsTheUserThatTheGuestKnows(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nbroken\nagent:x:1000:1001:Agent:/srv/agent:/bin/sh\n",
		"group":  "root:x:0:\nagents:x:1001:\nvideo:x:44:other,agent\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := newFileSystem(root, false)
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]*identity{
		"":            nil,
		"agent":       {UID: 1000, GID: 1001, Groups: []uint32{44}, Home: "/srv/agent", Name: "agent"},
		"1000":        {UID: 1000, GID: 1001, Groups: []uint32{44}, Home: "/srv/agent", Name: "agent"},
		"agent:video": {UID: 1000, GID: 44, Home: "/srv/agent", Name: "agent"},
		"4242":        {UID: 4242, GID: 4242, Home: "/", Name: "4242"},
		"4242:4343":   {UID: 4242, GID: 4343, Home: "/", Name: "4242"},
		"4242:agents": {UID: 4242, GID: 1001, Home: "/", Name: "4242"},
	} {
		got, err := f.identify(user)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", user, err, diff)
		}
	}
	for _, user := range []string{"nobody", "agent:nothing"} {
		if _, err := f.identify(user); holdfast.CodeOf(err) != holdfast.FailedPrecondition {
			t.Errorf("%q: %v", user, err)
		}
	}
}

// contract: E1. What the instance's image says holds for processes that do not say it.
func TestE1_TheImagesDefaultsHoldWhereAProcessSaysNothing(t *testing.T) {
	root, err := newFileSystem(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	s := &processes{files: root, boot: holdfast.GuestConfig{ProcessDefaults: holdfast.ProcessDefaults{
		Env: map[string]string{"PATH": "/opt/bin", "A": "image"}, Workdir: "/app", User: "4242"}}}
	for _, test := range []struct {
		in        holdfast.StartProcess
		uid       uint32
		dir, path string
	}{
		{holdfast.StartProcess{}, 4242, "/app", "/opt/bin"},
		{holdfast.StartProcess{User: "0", Cwd: "/srv", Env: map[string]string{"PATH": "/bin"}}, 0, "/srv", "/bin"},
	} {
		got, err := s.command(test.in)
		if err != nil || got.User == nil || got.User.UID != test.uid || got.Dir != test.dir || variable(got.Env, "PATH") != test.path || variable(got.Env, "A") != "image" {
			t.Errorf("%+v: %+v as %+v, %v", test.in, got, got.User, err)
		}
	}
}
