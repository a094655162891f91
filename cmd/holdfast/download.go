package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newDownloadCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "download ID REMOTE LOCAL",
		Short: "Copy a file out of a sandbox; LOCAL may be - for standard output",
		Long: `Copy a file out of a sandbox. It is staged beside LOCAL and moved into place when all of it came, so that LOCAL is
never a part. LOCAL may be a directory, or - for standard output.`,
		Args: exactly("ID", "REMOTE", "LOCAL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			d := download{app: a, client: c, sandbox: holdfast.SandboxID(args[0]), remote: args[1]}
			if args[2] == "-" {
				_, err := d.copy(ctx, a.out)
				return err
			}
			return d.into(ctx, args[2])
		},
	}
}

// download is one file to copy.
type download struct {
	*app
	client  *client.Client
	sandbox holdfast.SandboxID
	remote  string
}

func (d download) copy(ctx context.Context, to io.Writer) (holdfast.FileInfo, error) {
	return d.client.Download(ctx, d.sandbox, holdfast.ReadFile{Path: d.remote}, to)
}

// into copies to a local path.
func (d download) into(ctx context.Context, local string) error {
	target, special, err := resolveLocal(local, path.Base(d.remote))
	if err != nil {
		return err
	}
	if special {
		return d.through(ctx, target)
	}
	info, err := d.staged(ctx, target)
	if err != nil {
		return err
	}
	if d.output == "json" {
		return d.json(info)
	}
	return d.table("", [][]string{{fmt.Sprintf("%s: %d bytes", target, info.Size)}})
}

// resolveLocal finds what a local path stands for: the file in a directory, the
// target of a link; special is a device or pipe, which must not be replaced.
func resolveLocal(local, name string) (target string, special bool, err error) {
	info, err := os.Stat(local)
	if err == nil && info.IsDir() {
		local = filepath.Join(local, name)
		info, err = os.Stat(local)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return local, false, nil
	case err != nil:
		return "", false, fmt.Errorf("look at where to download to: %w", err)
	case info.IsDir():
		return "", false, hintError{fmt.Errorf("%s is a directory", local), "name another file"}
	case !info.Mode().IsRegular():
		return local, true, nil
	}
	target, err = filepath.EvalSymlinks(local)
	if err != nil {
		return "", false, fmt.Errorf("look at where to download to: %w", err)
	}
	return target, false, nil
}

// through copies into a device or pipe.
func (d download) through(ctx context.Context, target string) error {
	file, err := os.OpenFile(target, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open where to download to: %w", err)
	}
	_, err = d.copy(ctx, file)
	return errors.Join(err, file.Close())
}

// staged copies beside target, and moves into place what came whole.
func (d download) staged(ctx context.Context, target string) (info holdfast.FileInfo, err error) {
	stage, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".part-*")
	if err != nil {
		return info, fmt.Errorf("stage the download: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(stage.Name()))
		}
	}()
	info, err = d.copy(ctx, stage)
	if err == nil {
		err = stage.Chmod(localMode(target, info))
	}
	if err == nil {
		err = stage.Sync()
	}
	if err = errors.Join(err, stage.Close()); err != nil {
		return info, err
	}
	if err = os.Rename(stage.Name(), target); err != nil {
		return info, fmt.Errorf("move the download into place: %w", err)
	}
	return info, nil
}

// localMode is the mode of a download: of the file it replaces, else the remote
// file's, open to nobody but its owner for writing.
func localMode(target string, info holdfast.FileInfo) fs.FileMode {
	if before, err := os.Stat(target); err == nil {
		return before.Mode().Perm()
	}
	return fs.FileMode(info.Mode) & 0o755
}
