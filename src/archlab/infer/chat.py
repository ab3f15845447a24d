"""Generation of the response to one message, with the chat template of the model."""

from pathlib import Path

from archlab.data import tokenizer as bpe
from archlab.errors import UserError
from archlab.hf.chat_template import ChatTemplate, ChatTemplateError
from archlab.hf.folder import CHAT_TEMPLATE
from archlab.infer.text import Codec, PublishedCodec


class ChatCodec(PublishedCodec):
    """Codec that puts a prompt into a chat template, as the only message of a user. The model then writes the response.

    As in transformers, the names of special tokens are recognized, also in the prompt.
    """

    def __init__(self, codec: Codec, template: ChatTemplate) -> None:
        super().__init__(bpe.reading_special_tokens(codec.tokenizer), codec.special)
        self._template = template

    def encode(self, prompt: str) -> list[int]:
        """Return the tokens of the message and of the generation prompt. Raise UserError if the template fails."""
        try:
            text = self._template.render([{"role": "user", "content": prompt}], add_generation_prompt=True)
        except ChatTemplateError as error:
            raise UserError(f"prompt: {error}") from None
        with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
            return self.tokenizer.encode(text, add_special_tokens=False).ids


def chat_codec(codec: Codec, folder: Path) -> ChatCodec:
    """Return the codec for conversations with the model of a folder. Raise UserError if it has no chat template."""
    template = ChatTemplate.of(folder)
    if template is None:
        raise UserError(
            f"--chat: {folder} has no chat template ({CHAT_TEMPLATE}, or `chat_template` in tokenizer_config.json); "
            "leave --chat out to continue the prompt as plain text"
        )
    return ChatCodec(codec, template)
