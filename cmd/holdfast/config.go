package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/holdfast-dev/holdfast/client"
)

const defaultServer = "http://127.0.0.1:7420"

// app is what the commands share: the global flags, the streams, the environment.
type app struct {
	streams
	env      func(string) (string, bool)
	server   string
	key      string
	output   string
	timeout  time.Duration
	settings settings // as connect found them
}

// settings say which server to call, and as whom.
type settings struct{ server, key string }

// configFile is what ~/.config/holdfast/config.yaml may hold.
type configFile struct {
	Server string `yaml:"server"`
	APIKey string `yaml:"api-key"`
}

// connect makes the client that the flags, the environment and the machine say.
func (a *app) connect(options ...client.Option) (*client.Client, error) {
	found, err := a.lookup()
	if err != nil {
		return nil, err
	}
	a.settings = found
	options = append(options, client.WithAPIKey(found.key))
	if a.timeout > 0 {
		options = append(options, client.WithOverallTimeout(a.timeout))
	}
	c, err := client.New(found.server, options...)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// lookup finds the server and the key: a flag before the environment, then what
// lies on this machine. A key that belongs to one server is never sent to
// another: admin.key goes to loopback only, the configuration file's to its server.
func (a *app) lookup() (settings, error) {
	file, err := a.readConfigFile()
	if err != nil {
		return settings{}, err
	}
	found := settings{server: first(a.server, a.getenv("HOLDFAST_SERVER"), file.Server, defaultServer)}
	if found.key = first(a.key, a.getenv("HOLDFAST_API_KEY")); found.key != "" {
		return found, nil
	}
	if isLoopback(found.server) {
		if found.key, err = readKey(a.adminKeyFile()); err != nil {
			return settings{}, err
		}
	}
	if found.key == "" && (file.Server == "" || file.Server == found.server) {
		found.key = file.APIKey
	}
	return found, nil
}

func (a *app) readConfigFile() (configFile, error) {
	var file configFile
	path := filepath.Join(a.configDir(), "holdfast", "config.yaml")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return file, nil
	}
	if err != nil {
		return file, fmt.Errorf("read the configuration file: %w", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return file, hintError{fmt.Errorf("%s: %w", path, err), "it may hold server: and api-key:"}
	}
	return file, nil
}

func (a *app) configDir() string {
	if dir := a.getenv("XDG_CONFIG_HOME"); dir != "" {
		return dir
	}
	return filepath.Join(a.getenv("HOME"), ".config")
}

// adminKeyFile is where a server on this machine keeps its admin key.
func (a *app) adminKeyFile() string {
	return filepath.Join(first(a.getenv("HOLDFAST_DATA_DIR"), defaultDataDir()), "admin.key")
}

// readKey reads a key file; one that is not there, or not ours to read, is no key.
func readKey(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the admin key: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// defaultDataDir is the data directory of a server that is not told another.
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/holdfast"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "holdfast")
	}
	return filepath.Join(os.Getenv("HOME"), ".local", "share", "holdfast")
}

func isLoopback(server string) bool {
	at, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip := net.ParseIP(at.Hostname())
	return at.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func (a *app) getenv(name string) string {
	value, _ := a.env(name)
	return value
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
