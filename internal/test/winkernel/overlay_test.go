package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// build builds the program for Windows with the files of kube-proxy's proxier in package winkernel,
// and returns its name. Wine 8 lacks bcryptprimitives.dll, from which Go programs get random
// numbers. With the overlay they use advapi32.dll, which Wine has.
func build(dir string) (string, error) {
	theirs, err := output("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	root, err := output("go", "env", "GOROOT")
	if err != nil {
		return "", err
	}
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, f := range []string{"proxier.go", "hns.go", "hcnutils.go", "doc.go"} {
		replace[filepath.Join(here, "winkernel", f)] =
			filepath.Join(theirs, "pkg/proxy/winkernel", f)
	}

	replace[filepath.Join(here, "winkernel/stub_windows.go")] =
		filepath.Join(here, "winkernel/overlay.go.txt")
	for file, words := range map[string][]string{
		"src/runtime/os_windows.go": {`{'b', 'c', 'r', 'y', 'p', 't', 'p', 'r', 'i', 'm', 'i', ` +
			`'t', 'i', 'v', 'e', 's', '.',`, `{'a', 'd', 'v', 'a', 'p', 'i', '3', '2', '.',`,
			`ProcessPrng\000`, `SystemFunction036\000`},
		"src/internal/syscall/windows/zsyscall_windows.go": {`sysdll.Add("bcryptprimitives.dll")`,
			`sysdll.Add("advapi32.dll")`, `NewProc("ProcessPrng")`,
			`NewProc("SystemFunction036")`},
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return "", err
		}
		changed := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(changed, []byte(strings.NewReplacer(words...).
			Replace(string(text))), 0o600); err != nil {
			return "", err
		}

		replace[filepath.Join(root, file)] = changed
	}

	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, overlay, 0o600); err != nil {
		return "", err
	}
	program := filepath.Join(dir, "winkernel.exe")
	_, err = output("env", "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0", "go", "build",
		"-buildvcs=false", "-overlay", name, "-o", program, ".")
	return program, err
}

// output runs a command and returns its output.
func output(command ...string) (string, error) {
	c := exec.Command(command[0], command[1:]...)
	c.Stderr = &strings.Builder{}
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %v", strings.Join(command, " "), err, c.Stderr)
	}
	return strings.TrimSpace(string(out)), nil
}
