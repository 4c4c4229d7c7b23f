import { defineConfig } from "vite";

export default defineConfig({
  build: {
    target: "es2022",
    outDir: "../static",
    emptyOutDir: false,
    copyPublicDir: false,
    lib: {
      entry: { page: "source/page.ts", waterfall: "source/waterfall.ts" },
      formats: ["es"],
      fileName: (_, name) => `${name}.js`,
    },
  },
});
