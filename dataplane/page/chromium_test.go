package page_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

// chromium is a headless browser, controlled over pipes by the Chrome DevTools Protocol
// (https://chromedevtools.github.io/devtools-protocol/): each message is a JSON object and a NUL.
// Events are read while something waits for an answer.
type chromium struct {
	t       *testing.T
	to      io.Writer
	from    *os.File
	in      *bufio.Reader // of from
	session string
	calls   int
	loads   int      // the pages that were loaded
	said    []string // console output of the page, and blocked requests
}

// cdpMessage is an answer or an event.
type cdpMessage struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// startChromium starts a browser with an empty page.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium: make browser")
	}
	if testing.Short() {
		t.Skip("drives a browser: -short")
	}
	theirIn, to, err := os.Pipe()
	require.NoError(t, err)
	from, theirOut, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu",
		"--hide-scrollbars", "--disable-background-networking", "--no-first-run",
		"--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir())
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // descriptors 3 and 4
	require.NoError(t, cmd.Start())
	theirIn.Close()
	theirOut.Close()
	c := &chromium{t: t, to: to, from: from, in: bufio.NewReader(from)}
	t.Cleanup(func() {
		_, _ = to.WriteString(`{"id":0,"method":"Browser.close"}` + "\x00")
		_, _ = io.Copy(io.Discard, c.in) // until the browser ends
		_ = cmd.Wait()                   // the exit code does not matter
		to.Close()
		from.Close()
	})

	var target struct{ TargetID string }
	c.call("Target.createTarget", `{"url": "about:blank"}`, &target)
	var attached struct{ SessionID string }
	c.call("Target.attachToTarget", fmt.Sprintf(`{"targetId": %q, "flatten": true}`,
		target.TargetID), &attached)
	c.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		c.call(domain+".enable", "{}", nil)
	}
	return c
}

// patience is the maximum time of any step of the browser, so that a test that hangs fails.
const patience = 2 * time.Minute

// read reads a message of the browser, and records events.
func (c *chromium) read() (m cdpMessage) {
	c.t.Helper()
	require.NoError(c.t, c.from.SetReadDeadline(time.Now().Add(patience)))
	text := must.OK(c.in.ReadBytes(0))(c.t)
	require.NoError(c.t, json.Unmarshal(text[:len(text)-1], &m))
	switch m.Method {
	case "Page.loadEventFired":
		c.loads++
	case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
		c.said = append(c.said, string(m.Params))
	}

	return m
}

// call calls a method, and decodes its result into a value, unless that is nil.
func (c *chromium) call(method, params string, into any) {
	c.t.Helper()
	c.calls++
	session := ""
	if c.session != "" {
		session = fmt.Sprintf(`"sessionId": %q, `, c.session)
	}
	must.OK(fmt.Fprintf(c.to, `{"id": %d, %s"method": %q, "params": %s}`+"\x00", c.calls, session,
		method, params))(c.t)
	m := c.read()
	for m.ID != c.calls {
		m = c.read()
	}
	require.Nil(c.t, m.Error, "%s(%s)", method, params)
	if into != nil {
		require.NoError(c.t, json.Unmarshal(m.Result, into))
	}
}

// loaded calls do, which must load a page, and waits until the page is loaded.
func (c *chromium) loaded(do func()) {
	c.t.Helper()
	c.loads = 0
	do()
	for c.loads == 0 {
		c.read()
	}
}

// open loads a page.
func (c *chromium) open(url string) {
	c.t.Helper()
	c.loaded(func() { c.call("Page.navigate", fmt.Sprintf(`{"url": %q}`, url), nil) })
}

// eval evaluates a JavaScript expression. The policy of the page does not restrict it.
func (c *chromium) eval(expression string, into any) {
	c.t.Helper()
	text := must.OK(json.Marshal(expression))(c.t)
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	c.call("Runtime.evaluate", fmt.Sprintf(`{"expression": %s, "returnByValue": true}`, text), &r)
	require.Empty(c.t, string(r.ExceptionDetails))
	require.NoError(c.t, json.Unmarshal(r.Result.Value, into), "%s", expression)
}

// text evaluates an expression that yields a string.
func (c *chromium) text(expression string) (s string) {
	c.t.Helper()
	c.eval(expression, &s)
	return s
}

// press presses a key: Tab or Enter.
func (c *chromium) press(key string) {
	c.t.Helper()
	code, text := 9, ""
	if key == "Enter" {
		code, text = 13, `, "text": "\r"`
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		c.call("Input.dispatchKeyEvent", fmt.Sprintf(`{"type": %q, "key": %q, "code": %q, `+
			`"windowsVirtualKeyCode": %d%s}`, kind, key, key, code, text), nil)
	}
}

// write types text where the focus is.
func (c *chromium) write(text string) {
	c.t.Helper()
	c.call("Input.insertText", fmt.Sprintf(`{"text": %q}`, text), nil)
}

// look sets the size of the window, and the preferred colour scheme.
func (c *chromium) look(width, height int, scheme string) {
	c.t.Helper()
	c.call("Emulation.setDeviceMetricsOverride", fmt.Sprintf(`{"width": %d, "height": %d, `+
		`"deviceScaleFactor": 1, "mobile": false}`, width, height), nil)
	c.call("Emulation.setEmulatedMedia", fmt.Sprintf(`{"features": [{"name": `+
		`"prefers-color-scheme", "value": %q}]}`, scheme), nil)
}
