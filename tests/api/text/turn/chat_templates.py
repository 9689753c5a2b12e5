"""Chat templates with tools, in the manner of well-known models."""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <args-json-object>}" }}
    {{- "\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
        {{- message.content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

MISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- message.content + '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + ', "id": "' }}
            {{- call.id + '"}' + (']' + eos_token if loop.last else ', ') }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}{{- message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id }}
        {{- '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""

GRANITE = """{%- if tools %}
    {{- '<|start_of_role|>tools<|end_of_role|>' + (tools | tojson) + '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_of_role|>' + message.role + '<|end_of_role|>' }}
    {%- if message.tool_calls %}
        {{- message.content + '<|tool_call|>[' }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
            {{- '' if loop.last else ', ' }}
        {%- endfor %}
        {{- ']' }}
    {%- else %}{{- message.content }}{%- endif %}
    {{- '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}"""

_TOOLS = """{%- for tool in tools or [] %}{{- tool | tojson + '\\n' }}{%- endfor %}"""

LLAMA3 = (
    """{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\\n' }}
    """
    + _TOOLS
    + """
{%- endif %}{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls and message.tool_calls | length > 1 %}
        {{- raise_exception('This model only supports single tool-calls at once!') }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}{{- (call.arguments | tojson) + '}' }}
    {%- else %}{{- message.content }}{%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
)

LLAMA4 = (
    """{%- if tools %}{{- '<|header_start|>system<|header_end|>\\n\\nUse [func_name1(param1=value1), func_name2(...)]\\n' }}
    """
    + _TOOLS
    + """{{- '<|eot|>' }}{%- endif %}
{%- for message in messages %}
    {{- '<|header_start|>' + message.role + '<|header_end|>\\n\\n' }}
    {%- if message.tool_calls %}
        {{- '[' }}
        {%- for call in message.tool_calls %}
            {{- call.function.name + '(' }}
            {%- for name, value in call.function.arguments.items() %}
                {{- name + '=' + (value | tojson) + ('' if loop.last else ', ') }}
            {%- endfor %}
            {{- ')' + ('' if loop.last else ', ') }}
        {%- endfor %}
        {{- ']' }}
    {%- else %}{{- message.content }}{%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\\n\\n' }}{%- endif %}"""
)

MINISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
MISTRAL_SMALL = MINISTRAL.replace("'[ARGS]'", "'[CALL_ID]' + call.id + '[ARGS]'")

_THOUGHT = """{%- if message.reasoning_content %}
    {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}"""

CODER = (
    """{%- if tools %}{{- '<|im_start|>system\\n<tools>\\n' }}
    """
    + _TOOLS
    + """{{- '</tools>\\nCall as <tool_call>\\n<function=name>\\n<parameter=a>\\nvalue\\n</parameter>\\n</function>' }}
    {{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    """
    + _THOUGHT
    + """
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for name, value in call.function.arguments | items %}
            {%- set listed = value is mapping or (value is sequence and value is not string) %}
            {{- '<parameter=' + name + '>\\n' + (value | tojson if listed else value | string) + '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
)

GLM = (
    """{{- '[gMASK]<sop>' }}
{%- if tools %}{{- '<|system|>\\n<tools>\\n' }}
    """
    + _TOOLS
    + """{{- '</tools>' }}{%- endif %}
{%- for message in messages %}
    {{- '<|' + ('observation' if message.role == 'tool' else message.role) + '|>' }}
    {%- if message.reasoning_content %}{{- '\\n<think>' + message.reasoning_content + '</think>' }}{%- endif %}
    {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>' + call.function.name + '\\n' }}
        {%- for name, value in call.function.arguments.items() %}
            {{- '<arg_key>' + name + '</arg_key>\\n<arg_value>' + (value if value is string else value | tojson) }}
            {{- '</arg_value>\\n' }}
        {%- endfor %}
        {{- '</tool_call>' }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
)

HARMONY = (
    """{%- if tools %}{{- '<|start|>developer<|message|>' }}
    """
    + _TOOLS
    + """{{- '<|end|>' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set ns = namespace(begun=false) %}
        {%- if message.reasoning_content %}
            {%- set ns.begun = true %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.reasoning_content + '<|end|>' }}
        {%- endif %}
        {%- if message.content and message.tool_calls %}
            {{- '<|start|>assistant<|channel|>commentary<|message|>' + message.content + '<|end|>' }}
        {%- elif message.content %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<|start|>assistant<|channel|>commentary to=functions.' + call.function.name }}
            {{- ' <|constrain|>json<|message|>' + (call.function.arguments | tojson) + '<|call|>' }}
        {%- endfor %}
    {%- else %}{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""
)

PHI = (
    """{%- if tools %}{{- '<|system|>\\nformatted as functools[{"name": [function name], "arguments": ...}, ...]\\n' }}
    """
    + _TOOLS
    + """{{- '<|end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' }}
    {{- message.content }}
    {%- if message.tool_calls %}
        {{- 'functools[' }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
            {{- '' if loop.last else ', ' }}
        {%- endfor %}
        {{- ']' }}
    {%- endif %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
)

GEMMA4 = """{%- macro written(value) -%}
    {%- if value is string %}{{- '<|"|>' + value + '<|"|>' }}
    {%- elif value is none %}{{- 'null' }}
    {%- elif value is boolean %}{{- 'true' if value else 'false' }}
    {%- elif value is mapping %}
        {{- '{' }}
        {%- for name, one in value.items() %}{{- name + ':' + written(one) + ('' if loop.last else ',') }}{%- endfor %}
        {{- '}' }}
    {%- elif value is sequence %}
        {{- '[' }}{%- for one in value %}{{- written(one) + ('' if loop.last else ',') }}{%- endfor %}{{- ']' }}
    {%- else %}{{- value }}{%- endif %}
{%- endmacro -%}
{%- for tool in tools or [] %}{{- '<|tool>declaration:' + tool.function.name + '<tool|>' }}{%- endfor %}
{%- for message in messages %}
    {{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {%- if message.reasoning_content %}
        {{- '<|channel>thought\\n' + message.reasoning_content + '\\n<channel|>' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<|tool_call>call:' + call.function.name + written(call.function.arguments) + '<tool_call|>' }}
    {%- endfor %}
    {{- '<turn|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|turn>model\\n' }}{%- endif %}"""
GEMMA_FUNCTION = (
    GEMMA4.replace('<|"|>', "<escape>")
    .replace("<|tool_call>", "<start_function_call>")
    .replace("<tool_call|>", "<end_function_call>")
    .replace("<|turn>", "<start_of_turn>")
    .replace("<turn|>", "<end_of_turn>")
    .replace("<|channel>thought", "")
    .replace("<channel|>", "")
)

_OLMO_CALLS = """{{- '<function_calls>\\n' }}
        {%- for call in message.tool_calls %}
            {{- call.function.name + '(' }}
            {%- for name, value in call.function.arguments.items() %}
                {{- name + '=' + (value | tojson) + ('' if loop.last else ', ') }}
            {%- endfor %}
            {{- ')' + ('' if loop.last else '\\n') }}
        {%- endfor %}
        {{- '\\n</function_calls>' }}"""
OLMO = (
    """{%- if tools %}{{- '<|im_start|>system\\n<functions>' }}
    """
    + _TOOLS
    + """{{- '</functions><|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    """
    + _THOUGHT
    + """
    {{- message.content }}
    {%- if message.tool_calls %}
        """
    + _OLMO_CALLS
    + """
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
)
LFM = (
    OLMO.replace("'<function_calls>\\n'", "'<|tool_call_start|>['")
    .replace("'\\n</function_calls>'", "']<|tool_call_end|>'")
    .replace("else '\\n')", "else ', ')")
)
