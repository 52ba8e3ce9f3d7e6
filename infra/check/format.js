// Name each file that OpenTofu's formatter would change: node format.js HCL_TOOLS FILE...
const { readFileSync } = require("fs");
const [tools, ...files] = process.argv.slice(2);
const { format } = require(tools);

(async () => {
  for (const file of files) {
    const text = readFileSync(file, "utf8");
    if ((await format(text)) !== text) console.log(`${file}: is not formatted (hint: tofu fmt)`);
  }
  process.exit(0);
})();
