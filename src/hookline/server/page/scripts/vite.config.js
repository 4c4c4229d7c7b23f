import { defineConfig } from "vite";

export default defineConfig({
  build: {
    target: "es2022",
    outDir: "../static",
    emptyOutDir: false,
    copyPublicDir: false,
    lib: {
      entry: { frame: "source/frame.ts", page: "source/page.ts", waterfall: "source/waterfall.ts", order: "source/order.ts" },
      formats: ["es"],
      fileName: (_, name) => `${name}.js`,
    },
  },
});
