package guestagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// lookUp finds the file to execute, by the PATH that the process itself will
// have, and says in plain words why there is none.
func lookUp(c Command) (string, error) {
	if err := checkDirectory(c.Dir); err != nil {
		return "", err
	}
	if strings.Contains(c.Name, "/") {
		path := c.Name
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.Dir, path)
		}
		return path, checkExecutable(c.Name, path)
	}
	search := variable(c.Env, "PATH")
	var found error
	for _, dir := range filepath.SplitList(search) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(c.Dir, dir)
		}
		path := filepath.Join(dir, c.Name)
		err := checkExecutable(c.Name, path)
		if err == nil {
			return path, nil
		}
		if _, exists := os.Stat(path); exists == nil && found == nil {
			found = err // say why this one does not do, if no other does
		}
	}
	if found != nil {
		return "", found
	}
	return "", noSuchCommand("command not found: %q is in none of PATH=%s", c.Name, search)
}

func checkDirectory(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return noSuchCommand("the working directory %q does not exist", dir).With("field", "cwd")
	case err != nil:
		return noSuchCommand("the working directory %q cannot be used", dir).With("field", "cwd").Because(err)
	case !st.IsDir():
		return noSuchCommand("the working directory %q is not a directory", dir).With("field", "cwd")
	}
	return nil
}

func checkExecutable(name, path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return noSuchCommand("command not found: %q does not exist", name)
	case err != nil:
		return noSuchCommand("command %q cannot be executed", name).Because(err)
	case st.IsDir():
		return noSuchCommand("command %q is a directory", name)
	case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
		return noSuchCommand("command %q is not executable: make it so with chmod +x", name)
	}
	return nil
}

// startError says what the kernel said to an execution, nil for nil.
func startError(c Command, path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errClosing):
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "the instance is shutting down")
	case errors.Is(err, unix.ENOENT):
		return noSuchCommand("command %q cannot be executed: the interpreter or loader that it names does not exist", c.Name).Because(err)
	case errors.Is(err, unix.ENOEXEC):
		return noSuchCommand("command %q cannot be executed: it is no program for this machine, and no script that names its interpreter", c.Name).Because(err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP),
		errors.Is(err, unix.ETXTBSY), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ELIBBAD):
		return noSuchCommand("command %q cannot be executed", c.Name).Because(err)
	case errors.Is(err, unix.E2BIG):
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonTooLarge, "the arguments and variables are together more than the kernel takes").Because(err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return holdfast.E(holdfast.ResourceExhausted, holdfast.ReasonTooLarge, "the instance's limit of processes or memory is reached").Because(err)
	}
	return fmt.Errorf("execute %s: %w", path, err)
}

// environment puts maps on top of one another, the later the stronger.
func environment(layers ...map[string]string) []string {
	merged := map[string]string{}
	for _, layer := range layers {
		for key, value := range layer {
			merged[key] = value
		}
	}
	env := make([]string, 0, len(merged))
	for key, value := range merged {
		env = append(env, key+"="+value)
	}
	return env
}

func variable(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}
