package checks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// The protocol is gRPC over HTTP/2 with the messages of grpc.health.v1:
//
//	message HealthCheckRequest  { string service = 1; }
//	message HealthCheckResponse { ServingStatus status = 1; }
const (
	healthPath = "/grpc.health.v1.Health/Check"
	serving    = 1
	// maxMessage limits the size of an answer, which usually has two bytes.
	maxMessage = 64 << 10
)

// servingStatus are the names of statuses, by number.
var servingStatus = [...]string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}

// askGRPC asks the health service of a server.
func (m *Monitor) askGRPC(ctx context.Context, conn net.Conn, t Target) error {
	u := url.URL{Scheme: "http", Host: t.addr.String(), Path: healthPath}
	p := &http.Protocols{}
	if t.check.TLS {
		u.Scheme = "https"
		p.SetHTTP2(true)
	} else {
		p.SetUnencryptedHTTP2(true)
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(),
		bytes.NewReader(healthRequest(t.check.Service)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")

	return m.request(conn, t, req, p, func(answer *http.Response) error {
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", answer.StatusCode)
		}
		frame, err := io.ReadAll(io.LimitReader(answer.Body, maxMessage))
		if err != nil {
			return err
		}

		// Without a message, the headers are the trailers.
		from := answer.Trailer
		if from.Get("Grpc-Status") == "" {
			from = answer.Header
		}
		if code := from.Get("Grpc-Status"); code != "0" {
			message := from.Get("Grpc-Message")
			if text, err := url.PathUnescape(message); err == nil {
				message = text
			}
			return fmt.Errorf("gRPC status %s: %s", cmp.Or(code, "is missing"), message)
		}

		status, err := healthStatus(frame)
		switch {
		case err != nil:
			return err
		case status >= uint64(len(servingStatus)):
			return fmt.Errorf("the server says status %d", status)
		case status != serving:
			return fmt.Errorf("the server says %s", servingStatus[status])
		}

		return nil
	})
}

// healthRequest returns the frame of a request: the flag "not compressed", the length of the
// message, and the message.
func healthRequest(service string) []byte {
	var message []byte
	if service != "" {
		message = binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(service)))
		message = append(message, service...)
	}

	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// healthStatus returns the status in the frame of an answer. Fields after it do not matter.
func healthStatus(frame []byte) (uint64, error) {
	const header, tag = 5, 1 << 3
	if len(frame) == header && frame[0] == 0 {
		return 0, nil // the default is left out
	}
	if len(frame) > header && frame[0] == 0 && frame[header] == tag {
		if status, n := binary.Uvarint(frame[header+1:]); n > 0 {
			return status, nil
		}
	}

	return 0, errors.New("the answer is no HealthCheckResponse")
}
