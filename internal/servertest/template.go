package servertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const toolWithin = time.Minute // initdb on a stalled machine

// prepare makes a new folder for a server with the data in its subfolder data,
// both owned by the user. The tool that makes the data from nothing runs once per
// machine and server version; everybody else copies.
func prepare(name, binary string, user *account, tool func(data string) (path string, args []string)) (folder string, err error) {
	folder, err = newFolder(name)
	if err != nil {
		return "", err
	}
	template, err := template(name, binary, user, tool)
	if err == nil {
		err = copyTree(template, filepath.Join(folder, "data"), user)
	}
	if err == nil {
		err = giveTo(user, folder)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("data folder for %s: %w", name, err), os.RemoveAll(folder))
	}
	return folder, nil
}

// template returns the folder to copy, and makes it when there is none yet.
func template(name, binary string, user *account, tool func(data string) (string, []string)) (string, error) {
	version, err := runTool(nil, "/", binary, "--version")
	if err != nil {
		return "", err
	}
	path, args := tool("data") // with this name only for the key
	key := sha256.Sum256(fmt.Append(nil, version, path, args, user))
	made := filepath.Join(run.base, fmt.Sprintf("template-%s-%x", name, key[:8]))
	unlock, err := lockFile(made + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(made); err == nil {
		return made, nil
	}
	making := made + ".making" // perhaps left by a killed run
	if err := errors.Join(os.RemoveAll(making), os.Mkdir(making, 0o700), giveTo(user, making)); err != nil {
		return "", err
	}
	path, args = tool(making)
	if _, err := runTool(user, making, path, args...); err != nil {
		return "", err
	}
	return made, os.Rename(making, made)
}

// copyTree copies folders and files, with their modes, for the user.
func copyTree(from, to string, user *account) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, inside)
		info, err := entry.Info()
		switch {
		case err != nil:
			return err
		case info.IsDir():
			err = os.Mkdir(target, info.Mode().Perm())
		case info.Mode().IsRegular():
			err = copyFile(path, target, info.Mode().Perm())
		default:
			return fmt.Errorf("%s is %v; want a file or a folder", path, info.Mode())
		}
		return errors.Join(err, giveTo(user, target))
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, mode)
}

// runTool runs a program to its end and returns its output.
func runTool(user *account, folder, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), toolWithin)
	defer cancel()
	command := exec.CommandContext(ctx, path, args...)
	command.Dir = folder
	command.Env = environment()
	command.SysProcAttr = attributes(user)
	var output, problems bytes.Buffer
	command.Stdout, command.Stderr = &output, &problems
	err := startFromLastingThread(command)
	if err == nil {
		err = command.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), errors.Join(err, ctx.Err()),
			bytes.TrimSpace(append(output.Bytes(), problems.Bytes()...)))
	}
	return strings.TrimSpace(output.String()), nil
}
