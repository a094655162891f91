package guestagent

import (
	"bufio"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// identity is who a process runs as.
type identity struct {
	UID, GID uint32
	Groups   []uint32
	Home     string
	Name     string
}

// maxAccounts bounds what is read of /etc/passwd and /etc/group, in bytes.
const maxAccounts = 1 << 20

// identify finds who "name", "number", or either with ":group", is in this root; nil
// for "", which is root with nothing changed. A number need not be in /etc/passwd.
func (f *fileSystem) identify(user string) (*identity, error) {
	if user == "" {
		return nil, nil
	}
	name, group, grouped := strings.Cut(user, ":")
	who := &identity{Home: "/", Name: name}
	n, numeric := number(name)
	known := false
	for fields := range f.accounts("/etc/passwd", 7) {
		uid, ok := number(fields[2])
		gid, ok2 := number(fields[3])
		if ok && ok2 && (fields[0] == name || numeric && uid == n) {
			who.UID, who.GID, who.Home, who.Name, known = uid, gid, fields[5], fields[0], true
			break
		}
	}
	switch {
	case !known && !numeric:
		return nil, noAccount("user", name, "/etc/passwd")
	case !known:
		who.UID, who.GID = n, n
	}
	if grouped {
		gid, err := f.group(group)
		if err != nil {
			return nil, err
		}
		who.GID = gid
		return who, nil
	}
	for fields := range f.accounts("/etc/group", 4) {
		gid, ok := number(fields[2])
		for member := range strings.SplitSeq(fields[3], ",") {
			if ok && member == who.Name && known {
				who.Groups = append(who.Groups, gid)
			}
		}
	}
	return who, nil
}

func (f *fileSystem) group(name string) (uint32, error) {
	n, numeric := number(name)
	for fields := range f.accounts("/etc/group", 4) {
		gid, ok := number(fields[2])
		if ok && (fields[0] == name || numeric && gid == n) {
			return gid, nil
		}
	}
	if !numeric {
		return 0, noAccount("group", name, "/etc/group")
	}
	return n, nil
}

func noAccount(kind, name, file string) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNoSuchCommand, "there is no %s %q in %s", kind, name, file).With("field", "user")
}

// accounts yields the lines of a file that have that many fields; none where there is
// no such file.
func (f *fileSystem) accounts(path string, fields int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		file, err := f.open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return // as if it were empty: a number still works
		}
		defer file.Close() //nolint:errcheck // it is only read
		lines := bufio.NewScanner(io.LimitReader(file, maxAccounts))
		for lines.Scan() {
			if parts := strings.Split(lines.Text(), ":"); len(parts) == fields && !yield(parts) {
				return
			}
		}
	}
}

func number(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil
}
