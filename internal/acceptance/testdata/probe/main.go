// Command probe runs inside a sandbox and does there what a hostile guest would.
// It prints "ok" with what it got, or "refused" with the kernel's word.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	said, err := run(os.Args[1], os.Args[2:])
	fmt.Println(strings.TrimSpace(outcome(err) + " " + said))
}

func run(verb string, args []string) (string, error) {
	switch verb {
	case "call":
		return each(args, call), nil
	case "write":
		return each(args, write), nil
	case "dial":
		return each(args, dial), nil
	case "address":
		return address()
	case "post":
		return post(args[0], args[1], args[2], args[3:])
	case "pattern":
		n, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return "", err
		}
		if err := pattern(n); err != nil {
			return "", err
		}
		os.Exit(0)
	case "orphans":
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return "", err
		}
		return orphans(n)
	case "orphan":
		return "", exec.Command("/proc/self/exe", "nothing").Start() // and does not wait
	case "nothing":
		os.Exit(7)
	case "socket":
		return "", unixSocket(args[0])
	case "sparse":
		return "", sparse(args[0])
	}
	return "", errors.New("no such verb")
}

// each tries all of them at once and says what came of each, a line each.
func each(args []string, try func(string) error) string {
	said := make([]string, len(args))
	var wait sync.WaitGroup
	for i, arg := range args {
		wait.Go(func() { said[i] = arg + " " + outcome(try(arg)) })
	}
	wait.Wait()
	return "\n" + strings.Join(said, "\n")
}

func outcome(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return "refused " + unix.ErrnoName(errno)
	}
	return "refused " + err.Error()
}

// call makes one call that a guest must not be able to make.
func call(name string) error {
	switch name {
	case "mount":
		return unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "")
	case "bind":
		return unix.Mount("/etc", "/mnt", "", unix.MS_BIND, "")
	case "remount":
		return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "")
	case "umount":
		return unix.Unmount("/run/holdfast/spool", unix.MNT_DETACH)
	case "pivot_root":
		return unix.PivotRoot("/", "/mnt")
	case "open_tree":
		_, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
		return err
	case "fsopen":
		_, err := unix.Fsopen("tmpfs", 0)
		return err
	case "mknod":
		return unix.Mknod("/tmp/disk", unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0)))
	case "mknod-char":
		return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1)))
	case "unshare-user":
		return unix.Unshare(unix.CLONE_NEWUSER)
	case "unshare-mount":
		return unix.Unshare(unix.CLONE_NEWNS)
	case "clone-user":
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		return cmd.Run()
	case "setns":
		f, err := os.Open("/proc/self/ns/mnt")
		if err != nil {
			return err
		}
		return unix.Setns(int(f.Fd()), unix.CLONE_NEWNS)
	case "ptrace-init":
		return unix.PtraceAttach(1)
	case "init-memory":
		_, err := os.Open("/proc/1/mem")
		return err
	case "chroot":
		return unix.Chroot("/tmp")
	case "keyctl":
		_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
		return err
	case "add_key":
		_, err := unix.AddKey("user", "probe", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
		return err
	case "reboot":
		return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	case "sethostname":
		return unix.Sethostname([]byte("mine"))
	case "settime":
		tv := unix.Timeval{Sec: 1}
		return unix.Settimeofday(&tv)
	case "packet":
		_, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		return err
	case "raw":
		_, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
		return err
	case "vsock":
		_, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		return err
	}
	return raw(name)
}

// raw makes calls that have no wrapper; their arguments do not matter, as they
// must be refused before these are looked at.
func raw(name string) error {
	numbers := map[string]uintptr{
		"bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "userfaultfd": unix.SYS_USERFAULTFD,
		"io_uring_setup": unix.SYS_IO_URING_SETUP, "init_module": unix.SYS_INIT_MODULE, "kexec_load": unix.SYS_KEXEC_LOAD,
		"open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "swapon": unix.SYS_SWAPON, "acct": unix.SYS_ACCT,
		"clone3": unix.SYS_CLONE3, "request_key": unix.SYS_REQUEST_KEY, "quotactl": unix.SYS_QUOTACTL,
	}
	number, known := numbers[name]
	if !known {
		return errors.New("no such call")
	}
	var nothing [128]byte
	_, _, errno := unix.Syscall(number, 0, uintptr(unsafe.Pointer(&nothing)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// write writes a byte to what is at a path already.
func write(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("b")
	return errors.Join(err, f.Close())
}

func dial(to string) error {
	c, err := net.DialTimeout("tcp4", to, 500*time.Millisecond)
	if err != nil {
		return err
	}
	return c.Close()
}

// address is this instance's own.
func address() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String(), nil
		}
	}
	return "", errors.New("no address")
}

func post(method, url, body string, headers []string) (string, error) {
	if size, ok := strings.CutPrefix(body, "bytes:"); ok {
		n, err := strconv.Atoi(size)
		if err != nil {
			return "", err
		}
		body = strings.Repeat("x", n)
	}
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		req.Header.Set(name, value)
	}
	res, err := (&http.Client{Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return "", err
	}
	words, err := io.ReadAll(res.Body)
	return fmt.Sprint(res.StatusCode, " ", strings.TrimSpace(string(words))), errors.Join(err, res.Body.Close())
}

// pattern writes n bytes of which each eight are their own offset, big-endian.
func pattern(n int64) error {
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	var word [8]byte
	for at := int64(0); at < n; at += int64(len(word)) {
		binary.BigEndian.PutUint64(word[:], uint64(at))
		if _, err := out.Write(word[:min(int64(len(word)), n-at)]); err != nil {
			return err
		}
	}
	return out.Flush()
}

// orphans starts n processes that each leave a child behind.
func orphans(n int) (string, error) {
	for range n {
		if err := exec.Command("/proc/self/exe", "orphan").Run(); err != nil {
			return "", err
		}
	}
	return strconv.Itoa(n), nil
}

// unixSocket leaves a socket at a path.
func unixSocket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

// sparse makes a file that says that it has 1 TiB.
func sparse(path string) error {
	if err := os.WriteFile(path, []byte("at the beginning"), 0o600); err != nil {
		return err
	}
	return os.Truncate(path, 1<<40)
}
