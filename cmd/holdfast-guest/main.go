// Command holdfast-guest is the guest agent: PID 1 of an instance.
//
//	holdfast-guest --listen-fd 3 --config /run/holdfast/config.json --spool /run/holdfast/spool
//
// It serves its instance's processes and files (H11) on a socket that it was
// handed, or on a Unix socket of its own (--listen unix:/path), and calls home
// once it is ready. It mounts nothing: the runtime's bundle does. SIGTERM ends
// every process of the instance, within seconds, and then the agent.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
	"github.com/holdfast-dev/holdfast/rpc/guest"
	"github.com/holdfast-dev/holdfast/spool"
)

func main() {
	// Standard error is the instance's console, kept by its host.
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(os.Args[1:], log); err != nil {
		log.Error("the guest agent ends", "error", err)
		os.Exit(1)
	}
}

type options struct {
	listenFD              int
	listen, config, spool string
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("holdfast-guest", flag.ContinueOnError)
	flags.IntVar(&o.listenFD, "listen-fd", -1, "file descriptor of the listening socket to serve on")
	flags.StringVar(&o.listen, "listen", "", "address to listen on instead: unix:/path")
	flags.StringVar(&o.config, "config", "", "file with the boot's configuration; it is removed once read")
	flags.StringVar(&o.spool, "spool", "", "directory for processes' records and output")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.config == "" || o.spool == "":
		return o, errors.New("--config and --spool are needed")
	case (o.listenFD >= 0) == (o.listen != ""):
		return o, errors.New("either --listen-fd or --listen is needed")
	}
	return o, nil
}

func run(args []string, log *slog.Logger) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := harden(); err != nil {
		return err
	}
	// Before anything else that can fail: who boots us asks here how it went.
	listener, err := listen(o)
	if err != nil {
		return err
	}
	config, err := readConfig(o.config, log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	system, err := guestagent.NewSystem()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	notifier, err := spool.NewNotifier()
	if err != nil {
		log.Warn("followers of output will poll", "error", err)
		notifier = nil
	}
	agent, err := guestagent.New(guestagent.Config{Guest: config, Spool: o.spool, Executor: system, Notifier: notifier, Log: log})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	return serve(ctx, agent, listener, log)
}

// serve serves until ctx ends, and then ends the instance's processes.
func serve(ctx context.Context, agent *guestagent.Agent, listener net.Listener, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: guest.Handler(agent.Guest()), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var home sync.WaitGroup
	home.Go(func() {
		// Run has logged what kept it from calling home; the host asks anyway.
		_ = agent.Run(ctx)
	})
	var err error
	select {
	case <-ctx.Done():
		log.Info("asked to end")
	case err = <-served:
		err = fmt.Errorf("serve: %w", err)
	}
	cancel()
	err = errors.Join(err, agent.Close(), server.Close())
	home.Wait()
	return err
}

// harden keeps from the instance's processes what is the agent's alone: its
// memory, which has the boot's secret, and whatever descriptors it was given.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the agent's memory: %w", err)
	}
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	// A runtime, or its system call filter, that does not know that call.
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("keep descriptors from children: %w", err)
	}
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

func listen(o options) (net.Listener, error) {
	if o.listen != "" {
		path, ok := strings.CutPrefix(o.listen, "unix:")
		if !ok {
			return nil, fmt.Errorf("--listen %q: only unix:/path is known", o.listen)
		}
		listener, err := net.Listen("unix", path)
		if err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
		return listener, nil
	}
	file := os.NewFile(uintptr(o.listenFD), "listener")
	if file == nil {
		return nil, fmt.Errorf("--listen-fd %d is no file descriptor", o.listenFD)
	}
	listener, err := net.FileListener(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("--listen-fd: %w", err)
	}
	return listener, nil
}

// maxConfig bounds the configuration, in bytes.
const maxConfig = 1 << 20

// readConfig reads the configuration and removes it where it can: it holds the
// boot's secret.
func readConfig(path string, log *slog.Logger) (config holdfast.GuestConfig, err error) {
	file, err := os.Open(path)
	if err != nil {
		return config, fmt.Errorf("--config: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return config, fmt.Errorf("--config: %w", err)
	}
	if len(raw) > maxConfig {
		return config, fmt.Errorf("--config: more than %d bytes", maxConfig)
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return config, fmt.Errorf("--config: %w", err)
	}
	if config.Instance == "" || config.Incarnation < 1 {
		return config, errors.New("--config: it names no instance and incarnation")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Debug("the configuration stays", "error", err)
	}
	return config, nil
}
