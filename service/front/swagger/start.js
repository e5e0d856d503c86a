// Apart from the page, whose policy allows no script in it.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true });
