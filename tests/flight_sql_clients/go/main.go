// Reads one JSON request a line from standard input and answers each with one JSON line: the Flight
// SQL driver of ADBC and the Flight SQL client of Arrow, both in Go, driven by a test.
//
//	{"op": "query", "sql": "SELECT ?", "parameters": "<base64 of an Arrow stream>"}
//	{"data": "<base64 of an Arrow stream>"}
//	{"error": {"message": "...", "status": "InvalidArgument", "grpc": "InvalidArgument"}}
//
// Operations named adbc.* use the driver, all others the client.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/apache/arrow-adbc/go/adbc"
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc/status"
)

// request has the arguments of all operations; each uses some of them.
type request struct {
	Op         string            `json:"op"`
	Options    map[string]string `json:"options"`
	SQL        string            `json:"sql"`
	Parameters []byte            `json:"parameters"`
	Catalog    *string           `json:"catalog"`
	Schema     *string           `json:"schema"`
	Table      *string           `json:"table"`
	Column     *string           `json:"column"`
	Types      []string          `json:"types"`
	Codes      []uint32          `json:"codes"`
	Depth      int               `json:"depth"`
	Mode       string            `json:"mode"`
	Temporary  bool              `json:"temporary"`
	AfterRows  int64             `json:"after_rows"`
	TimeoutS   float64           `json:"timeout_s"`
}

// answer has what an operation returns, or its error.
type answer struct {
	Data  []byte   `json:"data,omitempty"`
	Rows  *int64   `json:"rows,omitempty"`
	Text  string   `json:"text,omitempty"`
	Error *failure `json:"error,omitempty"`
}

type failure struct {
	Message  string `json:"message"`
	Status   string `json:"status,omitempty"`
	SQLState string `json:"sqlstate,omitempty"`
	GRPC     string `json:"grpc,omitempty"`
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	session := &session{}
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			session.close()
			return
		}
		var asked request
		if err = json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		result, err := session.run(asked)
		if err != nil {
			result = answer{Error: explained(err)}
		}
		if err = answers.Encode(result); err != nil {
			panic(err)
		}
	}
}

func (s *session) run(asked request) (answer, error) {
	ctx := context.Background()
	if operation, found := driverOperations[asked.Op]; found {
		return operation(s, ctx, asked)
	}
	if operation, found := clientOperations[asked.Op]; found {
		return operation(s, ctx, asked)
	}
	return answer{}, fmt.Errorf("no operation %q", asked.Op)
}

// explained returns what a program sees of an error.
func explained(err error) *failure {
	told := &failure{Message: err.Error()}
	var ours adbc.Error
	if errors.As(err, &ours) {
		told.Message, told.Status = ours.Msg, ours.Code.String()
		if ours.SqlState[0] != 0 {
			told.SQLState = string(ours.SqlState[:])
		}
		return told
	}
	if from, ok := status.FromError(err); ok {
		told.Message, told.GRPC = from.Message(), from.Code().String()
	}
	return told
}

// packed returns all batches of a reader as an Arrow stream.
func packed(reader array.RecordReader) (answer, error) {
	defer reader.Release()
	var out bytes.Buffer
	writer := ipc.NewWriter(&out, ipc.WithSchema(reader.Schema()))
	for reader.Next() {
		if err := writer.Write(reader.RecordBatch()); err != nil {
			return answer{}, err
		}
	}
	if err := reader.Err(); err != nil {
		return answer{}, err
	}
	return answer{Data: out.Bytes()}, errors.Join(writer.Close())
}

// packedSchema returns a schema as an Arrow stream without batches.
func packedSchema(schema *arrow.Schema) (answer, error) {
	var out bytes.Buffer
	writer := ipc.NewWriter(&out, ipc.WithSchema(schema))
	if err := writer.Close(); err != nil {
		return answer{}, err
	}
	return answer{Data: out.Bytes()}, nil
}

// unpacked returns a reader of an Arrow stream.
func unpacked(data []byte) (array.RecordReader, error) {
	return ipc.NewReader(bytes.NewReader(data))
}
