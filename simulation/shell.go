package simulation

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
)

// TaskVariable names a task to the simulated guests: whoever submits one puts into its
// environment what it is, so that its starts are told from others'.
const TaskVariable = "SIMULATED_TASK"

// Fetched is the file that a session's preparation leaves in its workspace. One of a
// repository at the ref NoRef fails.
const (
	Fetched = holdfast.Workspace + "/fetched"
	NoRef   = "missing"
)

// start is one process that a guest was made to start.
type start struct {
	ref   holdfast.InstanceRef
	at    time.Time
	ended time.Time // zero while it runs
}

// shell runs the processes of one boot: what guestagent.Simulated knows, and the
// fetching of a repository. What is started is kept, by what it is.
type shell struct {
	guestagent.Executor
	boots boots
	ref   holdfast.InstanceRef
	root  string // of the boot's files
}

// Start implements guestagent.Executor.
func (s *shell) Start(command guestagent.Command) (guestagent.Child, error) {
	what := s.what(command)
	if isPreparation(command) {
		script := "echo fetching; sleep 400ms; exit 0"
		if strings.Contains(command.Args[1], "ref='"+NoRef+"'") {
			script = "echo there is no such ref; exit 128"
		} else if err := s.fetch(); err != nil {
			return nil, err
		}
		command.Args = []string{"-c", script}
	}
	// What ended in the instant of its start would be told as running or as ended.
	if at := slices.Index(command.Args, "-c") + 1; command.Name == "/bin/sh" && at > 0 && at < len(command.Args) {
		command.Args = slices.Clone(command.Args)
		command.Args[at] = "sleep 50ms; " + command.Args[at]
	}
	child, err := s.Executor.Start(command)
	if err != nil {
		return nil, err
	}
	s.boots.mu.Lock()
	defer s.boots.mu.Unlock()
	one := &start{ref: s.ref, at: time.Now()}
	s.boots.starts[what] = append(s.boots.starts[what], one)
	return noted{child, s.boots.mu, one}, nil
}

// isPreparation reports whether it is the fetching of a session's repository.
func isPreparation(c guestagent.Command) bool {
	return len(c.Args) == 2 && strings.Contains(c.Args[1], "git fetch")
}

// what a command is: a task, by the name that it was given; what is once in all in an
// instance; or what is once in a boot.
func (s *shell) what(c guestagent.Command) string {
	instance := string(s.ref.Instance)
	i := slices.IndexFunc(c.Env, func(v string) bool { return strings.HasPrefix(v, TaskVariable+"=") })
	switch {
	case i >= 0:
		return "task " + strings.TrimPrefix(c.Env[i], TaskVariable+"=")
	case isPreparation(c):
		return "preparation of " + instance
	case len(c.Args) > 1 && strings.HasPrefix(c.Args[1], "exec /bin/sh -e -c"):
		return "setup of " + instance
	case c.Name == "/bin/sh":
		return "hook in " + instance + " at " + strconv.FormatInt(time.Now().UnixNano(), 10)
	}
	return "process of " + instance + "/" + strconv.FormatInt(s.ref.Incarnation, 10)
}

func (s *shell) fetch() error {
	path := filepath.Join(s.root, Fetched)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("fetched\n"), 0o600))
}

// noted is a child whose end is kept, too.
type noted struct {
	guestagent.Child
	mu    *sync.Mutex // of one
	start *start
}

// Wait implements guestagent.Child.
func (n noted) Wait() int {
	code := n.Child.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.start.ended = time.Now()
	return code
}
