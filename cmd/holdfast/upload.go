package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newUploadCommand(a *app) *cobra.Command {
	var in holdfast.WriteFile
	cmd := &cobra.Command{
		Use:   "upload ID LOCAL REMOTE",
		Short: "Copy a file into a sandbox; LOCAL may be - for standard input",
		Long: `Copy a file into a sandbox, with its permissions. The remote file is all of the old until it is all of the new.
LOCAL may be - for standard input. REMOTE is an absolute path.`,
		Args: exactly("ID", "LOCAL", "REMOTE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			in.Path = args[2]
			return upload(cmd, a, holdfast.SandboxID(args[0]), args[1], in)
		},
	}
	cmd.Flags().BoolVar(&in.Append, "append", false, "append to the remote file; an interruption may leave a part")
	cmd.Flags().BoolVar(&in.CreateParents, "create-parents", false, "make missing directories")
	return cmd
}

func upload(cmd *cobra.Command, a *app, sandbox holdfast.SandboxID, local string, in holdfast.WriteFile) (err error) {
	content := a.in
	if local != "-" {
		file, mode, err := openLocal(local)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // was read only
		content, in.Mode = file, mode
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	written, err := c.Upload(ctx, sandbox, in, content)
	if err != nil {
		return err
	}
	if a.output == "json" {
		return a.json(written)
	}
	return a.table("", [][]string{{fmt.Sprintf("%s: %d bytes, SHA-256 %s", written.Info.Path, written.Bytes, written.SHA256)}})
}

// openLocal opens a file to send, and returns its permission bits.
func openLocal(path string) (io.ReadCloser, uint32, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, hintError{fmt.Errorf("open what is to be uploaded: %w", err), "name a file that can be read, or - for standard input"}
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory", path)
	}
	if err != nil {
		_ = file.Close() // was not used
		return nil, 0, hintError{err, "upload one file; of a directory: tar c DIR | holdfast sandbox upload ID - /tmp/dir.tar"}
	}
	return file, uint32(info.Mode().Perm()), nil
}
